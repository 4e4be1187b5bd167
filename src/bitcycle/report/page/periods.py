"""The final metric against the number that a critical-periods study varies."""

from __future__ import annotations

from bitcycle.report.page.chart import card, chart, figure, line
from bitcycle.report.page.escape import Html, chart_text
from bitcycle.report.page.looks import Look
from bitcycle.report.page.numbers import plain
from bitcycle.study.summary import GroupSummary

_NOTE = "The bar is the 95 % confidence interval of the mean; dotted: the baseline."


def periods_card(group: GroupSummary) -> Html | None:
    """None for studies that vary no number."""
    placed = [
        (row.method.method.at, row.summary, row)
        for row in group.done
        if row.method.method.at is not None and row.summary is not None
    ]
    if len(placed) < 2:
        return None
    placed.sort(key=lambda entry: entry[0])
    look = Look(0)
    means = line(
        [plain(at) for at, _, _ in placed],
        [plain(summary.mean) for _, summary, _ in placed],
        mode="lines+markers",
        line={"color": look.colour, "width": 2},
        marker={"size": 8, "color": look.colour},
        error_y={
            "type": "data", "symmetric": False, "color": look.colour,
            "array": [plain((s.high or s.mean) - s.mean) for _, s, _ in placed],
            "arrayminus": [plain(s.mean - (s.low or s.mean)) for _, s, _ in placed],
        },
        text=[chart_text(row.label) for _, _, row in placed],
        hovertemplate="%{text}<br>%{y:.4g}<extra></extra>",
    )  # fmt: skip
    traces, base = [means], group.baseline_row
    if base is not None and base.summary is not None:
        ends = [plain(placed[0][0]), plain(placed[-1][0])]
        mean = plain(base.summary.mean)
        dots = {"color": "var(--ink)/0.6", "width": 1.5, "dash": "dot"}
        traces.append(line(ends, [mean, mean], line=dots, hoverinfo="skip"))
    drawn = figure(
        traces,
        height=360,
        showlegend=False,
        xaxis={"title": {"text": "varied number (see the methods' names)"}},
        yaxis={"title": {"text": chart_text(f"final {group.metric}")}},
    )
    label = f"final {group.metric} against the number that the study varies"
    return card("Critical periods", chart(drawn, label=label), note=_NOTE)
