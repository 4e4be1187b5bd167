"""Figures as SVG elements of the page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from bitcycle.extras import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMESPACES = {"": "http://www.w3.org/2000/svg", "xlink": "http://www.w3.org/1999/xlink"}
_TAG = "{http://www.w3.org/2000/svg}"
# style.css has the font and the joins of lines
_UNUSED_STYLE = re.compile(r"font-family: [^;]*;? ?|stroke-line(?:join|cap): \w+;? ?")


def inline_svg(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element, the same at every call.

    name: unique on the page; ids inside the element, which clip paths and markers refer to, are
    derived from it. Text stays text, which matplotlib escapes.
    """
    matplotlib = require("matplotlib", extra="report", purpose="report pages")
    written = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(written, format="svg", facecolor="none", metadata={"Date": None})
    root = ElementTree.fromstring(written.getvalue())
    for unused in (*root.findall(f"{_TAG}metadata"), *root.findall(f"{_TAG}defs")[:1]):
        root.remove(unused)  # the first defs is a style for every element of the page
    del root.attrib["width"], root.attrib["height"]  # style.css fits it to the page
    for element in root.iter():
        _shorten(element)
    for prefix, uri in _NAMESPACES.items():
        ElementTree.register_namespace(prefix, uri)
    return ElementTree.tostring(root, encoding="unicode")


def _shorten(element: ElementTree.Element) -> None:
    """Drop what the page does not need: half of the bytes."""
    if element.tag == f"{_TAG}g":
        element.attrib.pop("id", None)  # such as axes_1, in every figure
    if "d" in element.attrib:
        element.attrib["d"] = _round(" ".join(element.attrib["d"].split()))
    if "style" in element.attrib:
        element.attrib["style"] = _UNUSED_STYLE.sub("", element.attrib["style"])
    element.tail = None
    if element.tag not in (f"{_TAG}text", f"{_TAG}tspan"):
        element.text = None


def _round(path: str) -> str:
    """A path with at most two decimals, a hundredth of a printer's point.

    >>> _round("M 57.281250 10 L 3.000001 0.5")
    'M 57.28 10 L 3 0.5'
    """
    return re.sub(r"\d+\.\d+", lambda number: f"{round(float(number[0]), 2):g}", path)
