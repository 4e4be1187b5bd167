"""The result of a study in one sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from bitcycle.analysis.numbers import (
    POINTS,
    decimals_for,
    fixed,
    interval_text,
    margin_text,
    share_text,
    summary_text,
)
from bitcycle.analysis.statistics import (
    MIN_SEEDS,
    MOST_SEEDS,
    Correlation,
    Difference,
    holm,
    num_seeds_to_decide,
)
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
    """Better or worse beyond noise, not different by what matters, or how many seeds it takes."""
    assert method.difference is not None
    if _is_equal(method.difference):
        return "equal in every seed"
    if not is_undecided(group, method):
        better = group.is_better(method)
        if better is None:
            return f"no different within {_margins([(group, method)])}"
        return "better, beyond noise" if better else "worse, beyond noise"
    return _cannot_tell([(group, method)])


def is_undecided(group: GroupSummary, method: MethodSummary) -> bool:
    """Whether the interval allows no difference and one that matters, or there is no interval.

    Differences of 0 in every seed are decided.
    """
    difference = method.difference
    assert difference is not None
    if _is_equal(difference):
        return False
    if difference.is_beyond_noise or difference.is_beyond_noise is None:
        return difference.is_beyond_noise is None
    return group.margin is None or not difference.is_within(group.margin)


def _is_equal(difference: Difference) -> bool:
    """Whether several seeds all end at the baseline's value."""
    return difference.n > 1 and difference.mean == 0 and difference.low is None


def _cannot_tell(undecided: Sequence[Pair], of: int = 1) -> str:
    """`cannot tell: needs about 7 seeds for 1 point`; of: the number of methods that were compared.

    Of several methods: `cannot tell for 2: needs about 7 to 12 seeds for 1 point`. With several
    reasons each has its number of methods.
    """
    start = "cannot tell" if len(undecided) == of else f"cannot tell for {len(undecided)}"
    reasons = [_why_unknown(*pair) for pair in undecided]
    countable = [pair for pair, why in zip(undecided, reasons, strict=True) if not why]
    counts = Counter(why or _seeds_needed(countable) for why in reasons)
    if len(counts) == 1:
        return f"{start}: {next(iter(counts))}"
    each = (f"{why} ({number} of {len(undecided)})" for why, number in counts.items())
    return f"{start}: {', '.join(each)}"


def _why_unknown(group: GroupSummary, method: MethodSummary) -> str:
    """Why the number of seeds that decide is not known; empty if it is."""
    difference = method.difference
    assert difference is not None
    if not math.isfinite(difference.mean):
        return "a value is not finite"
    if difference.n == 1:
        return f"needs at least {MIN_SEEDS} seeds, one seed has no spread"
    if difference.std is None:
        return "the same in every seed, so noise is not known"
    return "" if group.margin else "the interval contains 0 and the study has no margin"


def _seeds_needed(pairs: Sequence[Pair]) -> str:
    """`needs about 7 to 12 seeds for 1 point`, of methods whose number of seeds is known."""
    numbers = [
        num_seeds_to_decide(method.difference, group.margin) or 0
        for group, method in pairs
        if method.difference and group.margin
    ]
    least, most = (
        f"more than {n:,}" if n == MOST_SEEDS else f"{n:,}" for n in (min(numbers), max(numbers))
    )
    wanted = f"{least} to {most}" if least != most else least
    about = "" if wanted.startswith("more") else "about "
    return f"needs {about}{wanted} seeds for {_margins(pairs)}"


def _margins(pairs: Sequence[Pair]) -> str:
    """What matters in these groups."""
    margins = {
        margin_text(group.margin, group.metric) for group, _ in pairs if group.margin is not None
    }
    return margins.pop() if len(margins) == 1 else "what matters"


def _several(pairs: Sequence[Pair], what: str) -> str:
    undecided = [pair for pair in pairs if is_undecided(*pair)]
    num_equal = sum(_is_equal(method.difference) for _, method in pairs if method.difference)
    verdicts = [group.is_better(method) for group, method in pairs]
    counts = {
        "better": verdicts.count(True),
        "worse": verdicts.count(False),
        "equal in every seed": num_equal,
        f"no different within {_margins(pairs)}": (
            verdicts.count(None) - len(undecided) - num_equal
        ),
    }
    counted = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
    if undecided:
        unknown = _cannot_tell(undecided, of=len(pairs))
        counted = f"{counted}; {unknown}" if counted else unknown
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
    undecided = [pair for pair in pairs if is_undecided(*pair)]
    if undecided:
        text += f"; {_cannot_tell(undecided, of=len(pairs))}"
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
