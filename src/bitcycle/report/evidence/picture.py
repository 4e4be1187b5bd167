"""Pictures whose bytes depend on nothing but what they show."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bitcycle.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SALT = "bitcycle"  # of the names that SVG elements get
_PATH = re.compile(r'(?<= d=")[^"]*(?=")')
_LONG = re.compile(r"-?\d+\.\d{3,}")


@contextmanager
def plain_style() -> Iterator[None]:
    """matplotlib's own defaults, whatever the user's settings are; draw and save inside."""
    matplotlib = require("matplotlib", extra="report", purpose="pictures")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": _SALT, "svg.fonttype": "path"})
        yield


def svg_text(figure: Figure) -> str:
    """The picture as SVG, with no date in it; the version of matplotlib is."""
    buffer = io.BytesIO()
    metadata = {"Date": None, "Creator": creator()}
    figure.savefig(buffer, format="svg", metadata=metadata)
    text = buffer.getvalue().decode()
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def small_svg_text(figure: Figure) -> str:
    """The same for pictures of long lines: coordinates to a hundredth of a point."""

    def shorten(number: re.Match[str]) -> str:
        return f"{round(float(number[0]), 2):g}"

    return _PATH.sub(lambda path: _LONG.sub(shorten, path[0]), svg_text(figure))


def creator() -> str:
    """Bytes are the same only with the same version."""
    version: str = require("matplotlib", extra="report", purpose="pictures").__version__
    return f"bitcycle, matplotlib {version}"
