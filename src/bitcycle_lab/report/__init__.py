"""Pictures and report pages. Only this package imports matplotlib and jinja2."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(obj: object, **options: Any) -> Figure:
    """Draw a schedule, format, cost, range test, sensitivity, study or landscape.

    The options are the keywords of that picture, such as the length of the run for a schedule:
    `plot(parse_schedule("CR:3-8:8"), total_steps=64_000)`. `report.files.save` writes the figure.
    """
    figures = importlib.import_module(f"{__name__}.figures")
    for module in pkgutil.iter_modules(figures.__path__):  # their decorators register
        importlib.import_module(f"{figures.__name__}.{module.name}")
    return draw(obj, **options)


@functools.singledispatch
def draw(obj: object, **options: Any) -> Figure:
    """The registry of pictures: `@draw.register(Type)` adds one. Call `plot`, which loads all."""
    known = sorted(t.__qualname__ for t in draw.registry if t is not object)
    raise ValueError(
        f"there is no picture of {type(obj).__qualname__}; plot() draws: {', '.join(known)}"
    )
