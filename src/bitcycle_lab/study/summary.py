"""Statistics of a study: per group, every method against the baseline.

`summarize` gives a `GroupSummary` per group with a `MethodSummary` per method. Tables,
pictures and pages show these. The functions below compare costs, budgets, spreads and published
values within a group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bitcycle.schedules import parse_schedule
from bitcycle_lab.recipes import Published
from bitcycle_lab.study.kernels import kernel_notes
from bitcycle_lab.study.number_text import UNITS, common_decimals, seeds_text
from bitcycle_lab.study.results import MethodResult, StudyResult
from bitcycle_lab.study.statistics import (
    Correlation,
    Difference,
    Summary,
    num_seeds_to_decide,
    paired_difference,
    pareto_front,
    rank_correlation,
    round_digits,
    summarize_values,
)
from bitcycle_lab.study.study import Method
from bitcycle_lab.train.config import RunConfig

MARGINS = {"accuracy": 1.0}  # by metric, the smallest difference that matters
BOUNDS = {"accuracy": (0.0, 100.0)}  # by metric, what a value can be
MARGIN_SHARE = 0.01  # of the baseline's value, for other metrics
_ROUNDING = 1e-9  # relative difference of two costs that are equal but for float arithmetic


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """One method. The numbers are None (and is_on_front False) before one of its runs is done.

    difference: to the baseline over common seeds; None for the baseline itself. relative_cost:
    training BitOPs, the baseline's = 1. is_on_front: whether no method of the group is both cheaper
    and better, by cost and mean.
    """

    result: MethodResult
    summary: Summary | None
    difference: Difference | None
    relative_cost: float | None
    is_on_front: bool

    @property
    def method(self) -> Method:
        """The method as the study defines it."""
        return self.result.method

    @property
    def label(self) -> str:
        """The method's name in its group."""
        return self.method.label

    @property
    def bitops(self) -> float | None:
        """Mean training cost of a run."""
        return self.result.bitops

    @property
    def is_scheduled(self) -> bool:
        """Whether its bits change during training."""
        return has_changing_bits(self.method.config)


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """The methods of one group, in the study's order.

    baseline: its label; None without one. margin: the smallest difference that matters; None before
    it is known. margin_text: as captions write it, such as "1 point".
    """

    group: str
    metric: str
    higher_is_better: bool
    baseline: str | None
    methods: tuple[MethodSummary, ...]
    margin: float | None = None
    margin_text: str = ""

    @property
    def baseline_method(self) -> MethodSummary | None:
        """The method that the others are compared with."""
        return next((each for each in self.methods if each.label == self.baseline), None)

    @property
    def done(self) -> tuple[MethodSummary, ...]:
        """The methods with at least one finished run."""
        return tuple(each for each in self.methods if each.summary is not None)

    @property
    def compared(self) -> tuple[MethodSummary, ...]:
        """The methods with a difference to the baseline."""
        return tuple(each for each in self.methods if each.difference is not None)

    @property
    def front(self) -> tuple[MethodSummary, ...]:
        """The methods on the Pareto front, cheapest first."""
        on_front = (each for each in self.methods if each.is_on_front)
        return tuple(sorted(on_front, key=lambda each: (each.bitops or 0.0, each.label)))

    def is_better(self, method: MethodSummary) -> bool | None:
        """Whether a method is better than the baseline; None if the difference may be noise."""
        if method.difference is None or not method.difference.is_beyond_noise:
            return None
        return (method.difference.mean > 0) == self.higher_is_better

    def verdict(self, method: MethodSummary) -> str:
        """What the interval of the difference says; empty without a difference.

        better, worse: it excludes 0. equal: no seed differs. no different: it lies within the
        margin. undecided: it does neither, or there is none, as for one seed and for a difference
        that is the same in every seed; with the number of seeds that would decide, if known. not
        finite: a run diverged.
        """
        difference = method.difference
        if difference is None:
            return ""
        if not math.isfinite(difference.mean):
            return "not finite"
        if difference.n > 1 and difference.mean == 0 and difference.low is None:
            return "equal"
        better = self.is_better(method)
        if better is not None:
            return "better" if better else "worse"
        if self.margin is not None and difference.is_within(self.margin):
            return "no different"
        needed = num_seeds_to_decide(difference, self.margin) if self.margin else None
        return "undecided" if needed is None else f"undecided, needs {seeds_text(needed)} seeds"


@dataclass(frozen=True, kw_only=True)
class Decimals:
    """The decimals of the columns of a table, so that the numbers of a column have equally many."""

    value: int
    interval: int
    difference: int


def column_decimals(methods: Iterable[MethodSummary]) -> Decimals:
    """The decimals for these rows of a table, which are of one metric."""
    rows = list(methods)
    return Decimals(
        value=common_decimals(each.summary.std for each in rows if each.summary),
        interval=common_decimals(each.summary.half_width for each in rows if each.summary),
        difference=common_decimals(each.difference.half_width for each in rows if each.difference),
    )


def summarize(result: StudyResult) -> tuple[GroupSummary, ...]:
    """The summary of every group of the study, in its order."""
    return tuple(_summarize_group(result, group) for group in result.study.groups)


def _summarize_group(result: StudyResult, group: str) -> GroupSummary:
    methods, base = result.of(group), result.baseline(group)
    higher_is_better = result.study.higher_is_better(group)
    within = BOUNDS.get(result.study.metric(group), (-math.inf, math.inf))
    summaries = [
        summarize_values(method.values.values(), within=within) if method.values else None
        for method in methods
    ]
    margin, margin_text = _margin(result, group)
    nan = math.nan  # on no front
    on_front = pareto_front(
        [nan if method.bitops is None else method.bitops for method in methods],
        [nan if summary is None else summary.mean for summary in summaries],
        higher_is_better=higher_is_better,
    )
    return GroupSummary(
        group=group,
        metric=result.study.metric(group),
        higher_is_better=higher_is_better,
        baseline=None if base is None else base.method.label,
        margin=margin,
        margin_text=margin_text,
        methods=tuple(
            MethodSummary(
                result=method,
                summary=summary,
                difference=(
                    None
                    if base is None or method is base
                    else paired_difference(method.values, base.values)
                ),
                relative_cost=_ratio(method.bitops, None if base is None else base.bitops),
                is_on_front=is_on_front,
            )
            for method, summary, is_on_front in zip(methods, summaries, on_front, strict=True)
        ),
    )


def _margin(result: StudyResult, group: str) -> tuple[float | None, str]:
    """The margin and its text; by default 1 point of accuracy, or 1 % of the baseline's mean."""
    metric, base = result.study.metric(group), result.baseline(group)
    margin = result.study.margin or MARGINS.get(metric)
    if margin is not None:
        unit = f" point{'s' * (margin != 1)}" if metric in UNITS else ""
        return margin, f"{margin:g}{unit}"
    values = [] if base is None else [abs(v) for v in base.values.values() if math.isfinite(v)]
    if not any(values):
        return None, ""
    return MARGIN_SHARE * sum(values) / len(values), f"{100 * MARGIN_SHARE:g} % of the baseline"


def _ratio(own: float | None, base: float | None) -> float | None:
    return None if own is None or not base else own / base


def study_notes(result: StudyResult) -> tuple[str, ...]:
    """The notes of the study, and where its runs had different kernels; without full stops."""
    return (*result.study.notes, *kernel_notes(result))


def has_changing_bits(config: RunConfig) -> bool:
    """Whether any role's schedule has more than one number of bits."""
    texts = [
        inner
        for text in config.precision.schedule_texts(auto=1).values()
        for inner in (text.values() if isinstance(text, dict) else [text])
    ]
    schedules = [parse_schedule(text) for text in texts]
    return any(schedule.low != schedule.high for schedule in schedules)


def metric_title(metric: str) -> str:
    """The metric with its unit.

    >>> metric_title("accuracy"), metric_title("perplexity")
    ('accuracy, %', 'perplexity')
    """
    unit = UNITS.get(metric, "").strip()
    return f"{metric}, {unit}" if unit else metric


# -- cost and quality within a group --------------------------------------------------------------


def best_within(
    methods: Sequence[MethodSummary], budget_bitops: float, *, higher_is_better: bool
) -> MethodSummary | None:
    """The method with the best mean final value among those that cost no more than the budget.

    Of means that agree in nine digits the cheaper method; None when no method is that cheap. A
    mean that is not finite is never the best.
    """
    sign = 1 if higher_is_better else -1
    affordable = [
        (sign * round_digits(each.summary.mean), -round_digits(each.bitops), each)
        for each in methods
        if each.summary is not None and math.isfinite(each.summary.mean)
        and each.bitops and each.bitops <= budget_bitops * (1 + _ROUNDING)
    ]  # fmt: skip
    return max(affordable, key=lambda entry: entry[:2])[2] if affordable else None


def best_by_budget(group: GroupSummary) -> list[tuple[float, MethodSummary]]:
    """(BitOPs, best method within them) for the cost of every method, cheapest first."""
    costs: list[float] = []
    for cost in sorted(each.bitops for each in group.done if each.bitops is not None):
        if not costs or not math.isclose(cost, costs[-1], rel_tol=_ROUNDING):
            costs.append(cost)
    found = [
        (cost, best_within(group.done, cost, higher_is_better=group.higher_is_better))
        for cost in costs
    ]
    return [(cost, best) for cost, best in found if best is not None]


def cost_correlation(group: GroupSummary) -> Correlation:
    """Rank correlation of cost and quality over the methods whose bits change.

    Positive when more expensive methods end better, also for a metric of which less is better.
    """
    sign = 1 if group.higher_is_better else -1
    points = [
        (each.bitops, sign * each.summary.mean)
        for each in group.done
        if each.is_scheduled and each.summary is not None and each.bitops is not None
    ]
    return rank_correlation([cost for cost, _ in points], [quality for _, quality in points])


# -- published values -----------------------------------------------------------------------------


def published_values(method: Method, metric: str) -> tuple[Published, ...]:
    """Its published values of that metric; equal numbers once."""
    by_number = {p.value: p for p in reversed(method.published) if p.metric == metric}
    return tuple(sorted(by_number.values(), key=lambda p: method.published.index(p)))


def published_value(method: Method, metric: str) -> float | None:
    """Its published value, when there is exactly one."""
    found = published_values(method, metric)
    return found[0].value if len(found) == 1 else None


def published_relative_cost(method: Method, base: Method | None) -> float | None:
    """The published cost, relative to that of the baseline."""
    base_cost = None if base is None else published_value(base, "cost")
    return _ratio(published_value(method, "cost"), base_cost)


def published_difference(method: Method, base: Method | None, metric: str) -> float | None:
    """The published value minus that of the baseline; None for the baseline itself."""
    if base is None or base is method:
        return None
    own, other = published_value(method, metric), published_value(base, metric)
    return None if own is None or other is None else own - other
