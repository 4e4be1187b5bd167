"""Where the runs were made: versions, processor, revision; a column for each that differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bitcycle.report.page.chart import section
from bitcycle.report.page.escape import Html, tag
from bitcycle.report.page.recorded import RecordedMethod

MOST = 6  # columns
_NOT_PART = ("command",)  # each run has its own


def environment_section(methods: Sequence[RecordedMethod]) -> Html | None:
    """None when no run has begun."""
    found: list[tuple[dict[str, Any], int]] = []
    for run in (run for method in methods for run in method.begun):
        own = {key: value for key, value in run.environment.items() if key not in _NOT_PART}
        if not own:
            continue
        known = next((i for i, (other, _) in enumerate(found) if other == own), None)
        if known is None:
            found.append((own, 1))
        else:
            found[known] = (own, found[known][1] + 1)
    if not found:
        return None
    shown = sorted(found, key=lambda entry: -entry[1])[:MOST]
    keys = list(dict.fromkeys(key for own, _ in shown for key in own))
    head = tag("tr", tag("th", ""), *(tag("th", _runs(number), scope="col") for _, number in shown))
    rows = [
        tag(
            "tr",
            tag("th", key.replace("_", " "), scope="row"),
            *(tag("td", _text(own.get(key)), class_="wrap") for own, _ in shown),
        )
        for key in keys
    ]
    table = tag("table", tag("thead", head), tag("tbody", *rows))
    left = len(found) - len(shown)
    note = tag("p", f"{left} more environments are not shown.", class_="note") if left else None
    box = tag("div", table, class_="scroll", tabindex=0)
    return section("environment", "Environment", box, note)


def _runs(number: int) -> str:
    return f"{number} run{'s' if number > 1 else ''}"


def _text(value: Any) -> str:
    return "-" if value is None else str(value)
