"""The result of a study in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
from bitcycle.study.summary import GroupSummary, MethodSummary, cost_correlation, summarize

Pair = tuple[GroupSummary, MethodSummary]  # a method that is compared with its group's baseline


def headline(result: StudyResult) -> str:
    """What the finished runs say about the study's question, and how many runs are not done.

    One method is compared with the baseline by its numbers; several are counted. Methods whose bits
    change are the question where a study has them.
    """
    groups = summarize(result)
    text = "No run is done yet"
    if result.count("done"):
        by_kind = {"suite": _correlations, "critical-periods": _critical_periods}
        own = by_kind.get(result.study.kind, _comparison)
        text = own(groups) or _comparison(groups) or "Nothing to compare yet"
    num_missing, failed = result.num_runs - result.count("done"), result.count("failed")
    if not num_missing:
        return text
    why = f", {failed} of them failed" if failed else ""
    return f"{text}; {num_missing} of {result.num_runs} runs are not done{why}"


# -- methods against a baseline -------------------------------------------------------------------


def _comparison(groups: Sequence[GroupSummary]) -> str:
    pairs = [(group, method) for group in groups for method in group.compared]
    chosen = [(group, method) for group, method in pairs if method.is_scheduled] or pairs
    if not chosen:
        return ""
    if len(chosen) == 1:
        return _one(*chosen[0], len(groups))
    what = "methods" if len(chosen) == len(pairs) else "methods whose bits change"
    return _several(chosen, what)


def _one(group: GroupSummary, method: MethodSummary, num_groups: int) -> str:
    assert method.difference is not None
    place = f"{group.group}: " if group.group and num_groups > 1 else ""
    share = method.relative_cost
    cost = "" if share is None else f"{share_text(share)} of the cost, "
    return (
        f"{place}{method.label} against {group.baseline}: {cost}{group.metric} "
        f"{amount(method.difference, group.metric)}: {verdict(group, method)}"
    )


def amount(difference: Difference, metric: str) -> str:
    """A difference with unit, interval and n."""
    low, high = difference.low, difference.high
    if low is None or high is None:
        half, interval = None, f"n = {difference.n}, no interval"
    else:
        half = (high - low) / 2
        interval = f"95 % interval {interval_text(low, high)}, n = {difference.n}"
    mean = fixed(difference.mean, decimals_for(half), sign=True)
    return f"{mean}{POINTS.get(metric, '')} ({interval})"


def verdict(group: GroupSummary, method: MethodSummary) -> str:
    """Whether the difference to the baseline is more than noise."""
    assert method.difference is not None
    if method.difference.is_beyond_noise is None:
        if not math.isfinite(method.difference.mean):
            return "cannot tell: a value is not finite"
        one = method.difference.n == 1
        return "one seed cannot tell" if one else "the same in every seed, so noise is not known"
    if not method.difference.is_beyond_noise:
        return "no difference beyond noise"
    return "better, beyond noise" if group.is_better(method) else "worse, beyond noise"


def _several(pairs: Sequence[Pair], what: str) -> str:
    verdicts = [group.is_better(method) for group, method in pairs]
    unknown = sum(
        method.difference is not None and method.difference.is_beyond_noise is None
        for _, method in pairs
    )
    counts = {
        "better": verdicts.count(True),
        "worse": verdicts.count(False),
        "no different beyond noise": verdicts.count(None) - unknown,
        "without an interval": unknown,
    }
    counted = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
    text = f"Of {len(pairs)} {what} against {_baselines(pairs)}: {counted}"
    shares = [method.relative_cost for group, method in pairs
              if method.relative_cost is not None and not _has_float_baseline(group)]  # fmt: skip
    if not shares:
        return text
    low, high = share_text(min(shares)), share_text(max(shares))
    return f"{text}; {low if low == high else f'{low} to {high}'} of the cost"


def _baselines(pairs: Sequence[Pair]) -> str:
    return " and ".join(dict.fromkeys(str(group.baseline) for group, _ in pairs))


def _has_float_baseline(group: GroupSummary) -> bool:
    """Whether the baseline is float32: every method is cheap compared with it."""
    base = group.baseline_method
    return base is not None and base.method.config.precision.is_float


# -- suites ---------------------------------------------------------------------------------------


def _correlations(groups: Sequence[GroupSummary]) -> str:
    sentences = []
    for group in groups:
        correlation = cost_correlation(group)
        if correlation.rho is not None:
            place = f"{group.group}: " if group.group else ""
            sentences.append(
                f"{place}rank correlation of training cost and final {group.metric} over "
                f"{correlation.n} schedules {_strength(correlation, correlation.rho)}; on the "
                f"Pareto front: {', '.join(each.label for each in group.front)}"
            )
    return ". ".join(sentences)


def _strength(correlation: Correlation, rho: float) -> str:
    low, high = correlation.low, correlation.high
    if low is None or high is None:
        return f"{fixed(rho, 2)} (no interval)"
    meaning = f"more expensive ones end {'better' if low > 0 else 'worse'}"
    return (
        f"{fixed(rho, 2)} (95 % interval {fixed(low, 2)} to {fixed(high, 2)}): "
        f"{meaning if low > 0 or high < 0 else 'which may be chance'}"
    )


# -- critical periods -----------------------------------------------------------------------------


def _critical_periods(groups: Sequence[GroupSummary]) -> str:
    """The deficits that end worse than the baseline; without a baseline, the extreme values."""
    pairs: list[Pair] = []
    sentences = []
    for group in groups:
        varied = [each for each in group.done if each.method.at is not None]
        if len(varied) < 2:
            continue
        own = [(group, each) for each in varied if each.difference is not None]
        pairs += own
        if not own:
            ends = [min(varied, key=_mean), max(varied, key=_mean)]
            worst_first = ends if group.higher_is_better else reversed(ends)
            texts = [f"{summary_text(each.summary)} ({each.label})" for each in worst_first]
            place = f"{group.group}: " if group.group else ""
            sentences.append(f"{place}{group.metric} from {' to '.join(texts)}")
    if pairs:
        sentences.insert(0, _worse_deficits(pairs))
    return ". ".join(sentences)


def _worse_deficits(pairs: Sequence[Pair]) -> str:
    """How many end worse, how many after Holm's correction, and which."""
    worse = [pair for pair in pairs if pair[0].is_better(pair[1]) is False]
    tested = [
        (pair, difference.p or 0.0)
        for pair in pairs
        if (difference := pair[1].difference) and difference.is_beyond_noise is not None
    ]
    stays = holm([p for _, p in tested])
    kept = sum(stay and pair in worse for (pair, _), stay in zip(tested, stays, strict=True))
    text = f"{len(worse)} of {len(pairs)} deficits end worse than {_baselines(pairs)} beyond noise"
    if len(tested) > 1 and worse:
        text += f", {kept} when corrected for their number (Holm)"
    names = "; ".join(
        f"{f'{group.group}, ' if group.group else ''}{method.label}: "
        f"{amount(method.difference, group.metric)}"
        for group, method in worse
        if method.difference is not None
    )
    return f"{text}. Worse: {names}" if worse else text


def _mean(method: MethodSummary) -> float:
    assert method.summary is not None
    return method.summary.mean
