"""Loss landscapes that lie in the folders of the runs or of the study, on common levels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from bitcycle.landscape.result import FILE_NAME, Landscape
from bitcycle.report.page.chart import Figure, card, chart, figure, section
from bitcycle.report.page.escape import Html, tag
from bitcycle.report.page.numbers import plain
from bitcycle.report.page.recorded import RecordedMethod
from bitcycle.study.numbers import three_digits

MOST = 12
_RISE = 3.0  # losses more than this above the lowest centre share one colour
_NOTE = (
    "The mean loss on a plane through the weights along two random directions, each scaled to the "
    "weights; the cross is the model itself. All charts have the same colours. A flatter minimum "
    "rises less."
)


def landscapes_section(methods: Sequence[RecordedMethod], folder: Path) -> Html | None:
    """None when there is none."""
    found = list(_find(methods, folder))
    if not found:
        return None
    scale = _scale([item for _, item in found])
    cards = [
        card(title, chart(landscape_figure(item, scale), label=f"loss landscape of {title}"),
             note=_numbers(item))
        for title, item in found[:MOST]
    ]  # fmt: skip
    left = len(found) - len(cards)
    note = _NOTE + (f" {left} more are not shown." if left else "")
    body = tag("div", *cards, class_="grid")
    return section("landscapes", "Loss landscapes", body, tag("p", note, class_="note"))


def _find(methods: Sequence[RecordedMethod], folder: Path) -> Iterator[tuple[str, Landscape]]:
    for method in methods:
        for run in method.begun:
            for path in sorted(run.state.directory.glob(f"*{FILE_NAME}")):
                yield from _read(f"{method.title}, seed {run.seed}", path)
    for path in sorted(folder.glob(f"*{FILE_NAME}")):
        yield from _read(None, path)


def _read(title: str | None, path: Path) -> Iterator[tuple[str, Landscape]]:
    try:
        item = Landscape.read(path)
    except (ValueError, OSError):
        return
    yield f"{title or item.label} at {item.precision}", item


def _scale(items: Sequence[Landscape]) -> tuple[float, float]:
    """The least loss of all, and the most that gets a colour of its own."""
    finite = [x for item in items for row in item.losses for x in row if math.isfinite(x)]
    low = min(finite, default=0.0)
    return low, max(low + 1e-6, min(max(finite, default=1.0), low + _RISE))


def _numbers(item: Landscape) -> str:
    sharpness = item.sharpness
    rises = ", ".join(
        f"{three_digits(rise)} at {radius:g}"
        for radius, rise in zip(sharpness.radii, sharpness.rises, strict=True)
    )
    return f"loss {item.center:.4g} at the centre; mean rise {rises}"


def landscape_figure(item: Landscape, scale: tuple[float, float]) -> Figure:
    """Contours over both directions."""
    low, high = scale
    heights = [[_cut(loss, high) for loss in row] for row in item.losses]
    columns = [list(column) for column in zip(*heights, strict=True)]  # plotly: a row per y
    contour = {
        "type": "contour",
        "x": [plain(alpha) for alpha in item.alphas], "y": [plain(beta) for beta in item.betas],
        "z": columns, "zmin": low, "zmax": high, "zauto": False, "colorscale": "Viridis",
        "contours": {"start": low, "end": high, "size": (high - low) / 12},
        "line": {"width": 0.6},
        "colorbar": {"thickness": 10, "outlinewidth": 0, "tickformat": ".2f"},
        "hovertemplate": "%{x:.3g}, %{y:.3g}: loss %{z:.4g}<extra></extra>",
    }  # fmt: skip
    cross = {
        "type": "scatter", "mode": "markers", "x": [0], "y": [0], "hoverinfo": "skip",
        "marker": {"symbol": "x-thin", "size": 10, "line": {"width": 2, "color": "#ffffff"}},
    }  # fmt: skip
    return figure(
        [contour, cross],
        height=300,
        showlegend=False,
        xaxis={"title": {"text": "first direction"}, "constrain": "domain"},
        yaxis={"title": {"text": "second direction"}, "scaleanchor": "x", "constrain": "domain"},
    )


def _cut(loss: float, high: float) -> float | None:
    return high if loss == math.inf else plain(loss)
