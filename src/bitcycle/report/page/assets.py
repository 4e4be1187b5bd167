"""The page's own style and script, and plotly's."""

from __future__ import annotations

from importlib.resources import files

from bitcycle.extras import require
from bitcycle.report.page.escape import Html, trusted


def style() -> Html:
    """style.css."""
    return _file("style.css")


def script() -> Html:
    """page.js."""
    return _file("page.js")


def plotly_script() -> Html:
    """plotly.js as the installed plotly package brings it, so that the page needs no network."""
    offline = require("plotly.offline", extra="report", purpose="report pages")
    return trusted(offline.get_plotlyjs())


def _file(name: str) -> Html:
    return trusted(files("bitcycle.report.page").joinpath(name).read_text(encoding="utf-8"))
