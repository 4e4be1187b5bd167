"""All pictures: `plot(obj)` draws what it is given; matplotlib and plotly live only in here."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(obj: object, **options: Any) -> Figure:
    """A matplotlib figure of a schedule, a preview, a cost, a run, ...

    A file of this package adds a kind of picture with `@draw.register(Type)`; the options are that
    function's keywords. `bitcycle.report.schedules`: `plot(schedule, total_steps=64_000)`.
    """
    for module in pkgutil.iter_modules(__path__):  # their decorators register
        importlib.import_module(f"{__name__}.{module.name}")
    return draw(obj, **options)


@functools.singledispatch
def draw(obj: object, **options: Any) -> Figure:
    """The picture of one type; called through `plot`, which finds all types first."""
    known = sorted(t.__qualname__ for t in draw.registry if t is not object)
    raise ValueError(
        f"there is no picture of a {type(obj).__qualname__}; plot() draws: {', '.join(known)}"
    )
