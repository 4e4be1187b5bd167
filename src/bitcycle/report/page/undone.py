"""The runs that are not in the results: failed, not finished, not begun."""

from __future__ import annotations

from bitcycle.report.page.chart import card
from bitcycle.report.page.escape import Html, tag
from bitcycle.study.results import State, StudyResult

WORDS: dict[State, str] = {
    "failed": "failed",
    "started": "not finished",
    "missing": "not begun",
}
MOST = 40  # rows
_COLUMNS = ("state", "method", "seeds", "why")


def undone_card(result: StudyResult) -> Html | None:
    """A row for each method, state and reason, failed runs first; None when all are done."""
    seeds: dict[tuple[State, str, str], list[int]] = {}
    for state in WORDS:
        for method in result.methods:
            for run in method.runs:
                if run.state == state:
                    key = (state, method.method.key, run.error or "")
                    seeds.setdefault(key, []).append(run.run.seed)
    if not seeds:
        return None
    rows = [
        tag(
            "tr",
            tag("td", tag("span", WORDS[state], class_=f"badge {state}")),
            tag("th", name, scope="row"),
            tag("td", ", ".join(map(str, numbers))),
            tag("td", why, class_="wrap"),
        )
        for (state, name, why), numbers in list(seeds.items())[:MOST]
    ]
    head = tag("tr", *(tag("th", title, scope="col") for title in _COLUMNS))
    table = tag("table", tag("thead", head), tag("tbody", *rows))
    count = sum(map(len, seeds.values()))
    left = len(seeds) - len(rows)
    return card(
        f"{count} of {result.num_runs} runs are not in the results",
        tag("div", table, class_="scroll", tabindex=0),
        note=f"{left} more methods are not listed." if left else None,
    )
