"""The statistics of a study, as plain functions of numbers.

Nothing here knows of runs: `bitcycle.study.summary` brings the values. All intervals are 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist, correlation, fmean, median, stdev
from types import ModuleType

from bitcycle.extras import require

CONFIDENCE = 0.95
LEVEL = 0.05
_ROUNDING = 1e-9  # a spread below this share of the values is float arithmetic, not noise


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Mean of n values, their standard deviation (n - 1) and the t interval of the mean.

    std: None for one value. low, high: None where there is no spread to judge by, that is for one
    value and for values that are all equal.
    """

    mean: float
    std: float | None
    n: int
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Mean of n paired differences (value minus base), its t interval and the p-value of 0.

    low, high, p: None where there is no spread to judge by (see `Summary`).
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    n: int

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether the interval leaves out 0; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, kw_only=True)
class VarianceTest:
    """Brown-Forsythe: whether groups spread alike. Small p: they do not."""

    statistic: float
    p: float


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's rank correlation of n pairs; the interval is Bonett and Wright's.

    rho: None when one side does not vary. low, high: None for n < 4 and for a perfect order.
    """

    rho: float | None
    low: float | None
    high: float | None
    n: int


def summarize_values(values: Iterable[float]) -> Summary:
    """Mean, deviation and interval of at least one value.

    >>> two = summarize_values([90.0, 92.0])  # t(0.975, 1) = 12.706, standard error 1
    >>> two.mean, round(two.std, 4), round(two.low, 2), round(two.high, 2)
    (91.0, 1.4142, 78.29, 103.71)
    >>> summarize_values([90.0])
    Summary(mean=90.0, std=None, n=1, low=None, high=None)
    """
    numbers = list(values)
    if not numbers:
        raise ValueError("nothing to summarize: give at least one value")
    mean, std = _mean(numbers), _spread(numbers, scale=max(map(abs, numbers)))
    half = _half_width(std, len(numbers))
    return Summary(
        mean=mean,
        std=std,
        n=len(numbers),
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
    )


def paired_difference(values: Mapping[int, float], base: Mapping[int, float]) -> Difference | None:
    """Values minus base over the seeds that both have; None when they have none in common.

    p: of the paired t-test.

    >>> paired_difference({0: 3.0, 1: 5.0, 7: 9.0}, {0: 2.0, 1: 3.0, 4: 0.0}).mean
    1.5
    """
    seeds = sorted(values.keys() & base.keys())
    if not seeds:
        return None
    differences = [values[seed] - base[seed] for seed in seeds]
    scale = max(abs(side[seed]) for side in (values, base) for seed in seeds)
    mean, std = _mean(differences), _spread(differences, scale=scale)
    half = _half_width(std, len(seeds))
    if half is None or std is None:
        return Difference(mean=mean, low=None, high=None, p=None, n=len(seeds))
    t = mean / (std / math.sqrt(len(seeds)))
    p = 2 * float(_special().stdtr(len(seeds) - 1, -abs(t)))
    return Difference(mean=mean, low=mean - half, high=mean + half, p=p, n=len(seeds))


def brown_forsythe(groups: Sequence[Sequence[float]]) -> VarianceTest | None:
    """Analysis of variance of the distances to the group's median.

    None for fewer than two groups, for a group of fewer than three values (the two distances of a
    pair are always equal), and when the distances of no group spread.
    """
    if len(groups) < 2 or any(len(group) < 3 for group in groups):
        return None
    if not all(math.isfinite(value) for group in groups for value in group):
        return None
    scale = max(abs(value) for group in groups for value in group) or 1.0
    groups = [[value / scale for value in group] for group in groups]  # squares do not overflow
    distances = [[abs(value - median(group)) for value in group] for group in groups]
    if all(_spread(group, scale=1.0) == 0 for group in distances):
        return None
    means, grand = [fmean(group) for group in distances], fmean(chain.from_iterable(distances))
    free = len(groups) - 1, sum(map(len, groups)) - len(groups)
    between = sum(len(g) * (m - grand) ** 2 for g, m in zip(distances, means, strict=True))
    within = sum((z - m) ** 2 for g, m in zip(distances, means, strict=True) for z in g)
    statistic = (between / free[0]) / (within / free[1])
    return VarianceTest(statistic=statistic, p=float(_special().fdtrc(*free, statistic)))


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> Correlation:
    """Spearman's rho; interval by Fisher's z with the variance of Bonett and Wright (2000).

    z = atanh(rho) +- 1.96 sqrt((1 + rho^2 / 2) / (n - 3)), mapped back by tanh.

    >>> rank_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]).rho
    0.8
    """
    n = len(x)
    if len(y) != n:
        raise ValueError(f"{n} numbers against {len(y)}: a correlation needs pairs")
    own, other = list(map(settled, x)), list(map(settled, y))
    if n < 2 or len(set(own)) == 1 or len(set(other)) == 1:
        return Correlation(rho=None, low=None, high=None, n=n)
    rho = round(correlation(_ranks(own), _ranks(other)), 12)  # a perfect order is exactly +-1
    if n < 4 or abs(rho) == 1:
        return Correlation(rho=rho, low=None, high=None, n=n)
    z = math.atanh(rho)
    half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return Correlation(rho=rho, low=math.tanh(z - half), high=math.tanh(z + half), n=n)


def pareto_front(
    costs: Sequence[float], values: Sequence[float], *, higher_is_better: bool = True
) -> list[bool]:
    """Which points no other point beats: at most their cost and at least as good, one strictly.

    Numbers that agree in nine digits are equal. What is no number is on no front.

    >>> pareto_front([1, 2, 3, 4], [90.0, 89.0, 91.0, float("nan")])
    [True, False, True, False]
    """
    sign = 1 if higher_is_better else -1
    points = [
        (settled(cost), sign * settled(value)) for cost, value in zip(costs, values, strict=True)
    ]
    return [
        not math.isnan(point[1])
        and not any(
            other != point and other[0] <= point[0] and other[1] >= point[1] for other in points
        )
        for point in points
    ]


def settled(number: float) -> float:
    """To nine significant digits: equal means stay equal, however they were added up and stored.

    >>> settled(98.99999999998), settled(99.00000000002), settled(98.9999999)
    (99.0, 99.0, 98.9999999)
    """
    return float(f"{number:.9g}")


def _mean(numbers: Sequence[float]) -> float:
    """Also of what is infinite; NaN where infinities have both signs."""
    is_finite = all(map(math.isfinite, numbers))
    return fmean(numbers) if is_finite else sum(numbers) / len(numbers)


def _spread(numbers: Sequence[float], *, scale: float) -> float | None:
    """Standard deviation; exactly 0 when all are equal but for rounding, None for one number."""
    if len(numbers) < 2 or not all(map(math.isfinite, numbers)):
        return None
    std = stdev(numbers)
    return std if std > _ROUNDING * scale else 0.0


def _half_width(std: float | None, n: int) -> float | None:
    """Of the t interval of a mean; None without spread."""
    if not std:
        return None
    quantile = float(_special().stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    return quantile * std / math.sqrt(n)


def _ranks(numbers: Sequence[float]) -> list[float]:
    """From 1; equal numbers share the mean of theirs.

    >>> _ranks([3.0, 1.0, 3.0, 2.0])
    [3.5, 1.0, 3.5, 2.0]
    """
    ordered = sorted(numbers)
    return [ordered.index(x) + (ordered.count(x) + 1) / 2 for x in numbers]


def _special() -> ModuleType:
    return require("scipy.special", extra="train", purpose="statistics")


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which stay significant when no more than `level` of all families may hold a false one.

    The k-th smallest of m is compared with level / (m - k), k from 0, up to the first that fails.

    >>> holm([0.03, 0.001, 0.02, 0.9])
    [False, True, False, False]
    """
    stays = [False] * len(p_values)
    for k, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[i] > level / (len(p_values) - k):
            break
        stays[i] = True
    return stays
