"""The answer of a study in one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bitcycle.analysis.numbers import (
    POINTS,
    decimals_for,
    fixed,
    interval_text,
    share_text,
    summary_text,
)
from bitcycle.analysis.statistics import Correlation, Difference, holm
from bitcycle.study.results import StudyResult
from bitcycle.study.summary import GroupSummary, Row, cost_relation, summarize


def headline(result: StudyResult) -> str:
    """What the runs that are done say about the study's question, and how many are not.

    One method against one baseline is said with its numbers, more of them are counted: methods
    whose bits change where the study has such, all that are compared otherwise.
    """
    groups = summarize(result)
    text = "No run is done yet"
    if result.count("done"):
        text = _relations(groups) if result.study.kind == "suite" else ""
        text = text or (_extremes(groups) if result.study.kind == "critical-periods" else "")
        text = text or _comparison(groups) or "Nothing to compare yet"
    return text + _missing(result)


def _missing(result: StudyResult) -> str:
    undone = result.num_runs - result.count("done")
    if not undone:
        return ""
    failed = result.count("failed")
    why = f", {failed} of them failed" if failed else ""
    return f"; {undone} of {result.num_runs} runs are not done{why}"


# -- methods against a baseline -----------------------------------------------------------------


def _comparison(groups: Sequence[GroupSummary]) -> str:
    compared = [(group, row) for group in groups for row in group.others]
    chosen = [(group, row) for group, row in compared if row.is_scheduled] or compared
    if not chosen:
        return ""
    if len(chosen) == 1:
        return _one(*chosen[0], len(groups))
    what = "methods" if len(chosen) == len(compared) else "methods whose bits change"
    return _several(chosen, what)


def _one(group: GroupSummary, row: Row, num_groups: int) -> str:
    assert row.difference is not None
    place = f"{group.group}: " if group.group and num_groups > 1 else ""
    cost = "" if row.relative_cost is None else f"{share_text(row.relative_cost)} of the cost, "
    return (
        f"{place}{row.label} against {group.baseline}: {cost}{group.metric} "
        f"{amount(row.difference, group.metric)}: {verdict(group, row)}"
    )


def amount(difference: Difference, metric: str) -> str:
    """A difference with unit, interval and n."""
    low, high = difference.low, difference.high
    if low is None or high is None:
        mean = fixed(difference.mean, decimals_for(None), sign=True)
        return f"{mean}{POINTS.get(metric, '')} (n = {difference.n}, no interval)"
    mean = fixed(difference.mean, decimals_for((high - low) / 2), sign=True)
    interval = f"95 % interval {interval_text(low, high)}, n = {difference.n}"
    return f"{mean}{POINTS.get(metric, '')} ({interval})"


def verdict(group: GroupSummary, row: Row) -> str:
    """Whether a row's difference to the baseline is more than noise."""
    assert row.difference is not None
    if row.difference.is_beyond_noise is None:
        if not math.isfinite(row.difference.mean):
            return "cannot tell: a value is not finite"
        one = row.difference.n == 1
        return "one seed cannot tell" if one else "the same in every seed, so noise is not known"
    if not row.difference.is_beyond_noise:
        return "no difference beyond noise"
    return "better, beyond noise" if group.is_better(row) else "worse, beyond noise"


def _several(chosen: Sequence[tuple[GroupSummary, Row]], what: str) -> str:
    verdicts = [group.is_better(row) for group, row in chosen]
    unknown = sum(
        row.difference is not None and row.difference.is_beyond_noise is None for _, row in chosen
    )
    counts = {
        "better": verdicts.count(True),
        "worse": verdicts.count(False),
        "no different beyond noise": verdicts.count(None) - unknown,
        "without an interval": unknown,
    }
    said = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
    bases = list(dict.fromkeys(str(group.baseline) for group, _ in chosen))
    text = f"Of {len(chosen)} {what} against {' and '.join(bases)}: {said}"
    shares = [row.relative_cost for group, row in chosen
              if row.relative_cost is not None and not _is_float(group)]  # fmt: skip
    if not shares:
        return text
    low, high = share_text(min(shares)), share_text(max(shares))
    return f"{text}; {low if low == high else f'{low} to {high}'} of the cost"


def _is_float(group: GroupSummary) -> bool:
    """Whether the baseline is float32, next to which anything is cheap."""
    base = group.baseline_row
    return base is not None and base.method.method.config.precision.is_float


# -- suites and critical periods ----------------------------------------------------------------


def _relations(groups: Sequence[GroupSummary]) -> str:
    said = []
    for group in groups:
        relation = cost_relation(group)
        if relation.correlation.rho is None:
            continue
        place = f"{group.group}: " if group.group else ""
        said.append(
            f"{place}rank correlation of training cost and final {group.metric} over "
            f"{relation.correlation.n} schedules {_strength(relation.correlation)}; on the Pareto "
            f"front: {', '.join(relation.front)}"
        )
    return ". ".join(said)


def _strength(correlation: Correlation) -> str:
    assert correlation.rho is not None
    low, high = correlation.low, correlation.high
    if low is None or high is None:
        return f"{fixed(correlation.rho, 2)} (no interval)"
    meaning = "dearer ones end better" if low > 0 else "dearer ones end worse"
    return (
        f"{fixed(correlation.rho, 2)} (95 % interval {fixed(low, 2)} to {fixed(high, 2)}): "
        f"{meaning if low > 0 or high < 0 else 'which may be chance'}"
    )


def _extremes(groups: Sequence[GroupSummary]) -> str:
    """Which deficits harm; values where there is no baseline."""
    compared: list[tuple[GroupSummary, Row, Difference]] = []
    said = []
    for group in groups:
        rows = [row for row in group.done if row.method.method.at is not None]
        if len(rows) < 2:
            continue
        found = [(group, row, row.difference) for row in rows if row.difference is not None]
        compared += found
        if not found:
            worst, best = (end(rows, key=_mean) for end in _ends(group))
            place = f"{group.group}: " if group.group else ""
            said.append(
                f"{place}{group.metric} from {summary_text(worst.summary)} ({worst.label}) to "
                f"{summary_text(best.summary)} ({best.label})"
            )
    if compared:
        said.insert(0, _harm(compared))
    return ". ".join(said)


def _ends(group: GroupSummary) -> tuple[Callable[..., Row], Callable[..., Row]]:
    """The worst and the best of rows."""
    return (min, max) if group.higher_is_better else (max, min)


def _harm(compared: Sequence[tuple[GroupSummary, Row, Difference]]) -> str:
    """How many end worse, which, and how many stay when corrected for their number."""
    bases = " and ".join(dict.fromkeys(str(group.baseline) for group, _, _ in compared))
    worse = [entry for entry in compared if entry[0].is_better(entry[1]) is False]
    told = [entry for entry in compared if entry[2].is_beyond_noise is not None]
    stays = holm([difference.p or 0.0 for _, _, difference in told])
    kept = [entry for entry, stay in zip(told, stays, strict=True) if stay and entry in worse]
    names = "; ".join(
        f"{f'{group.group}, ' if group.group else ''}{row.label}: "
        f"{amount(difference, group.metric)}"
        for group, row, difference in worse
    )
    text = f"{len(worse)} of {len(compared)} deficits end worse than {bases} beyond noise"
    if len(told) > 1 and worse:
        text += f", {len(kept)} when corrected for their number (Holm)"
    return f"{text}. Worse: {names}" if worse else text


def _mean(row: Row) -> float:
    assert row.summary is not None
    return row.summary.mean
