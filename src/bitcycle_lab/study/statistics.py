"""Statistics of runs: means, paired differences, tests and the Pareto front.

Plain functions of numbers; `bitcycle_lab.study.summary` applies them to the runs of a study.
Intervals are 95 % confidence intervals. Distributions, ranks and tests are scipy's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from types import ModuleType

from bitcycle.extras import require

CONFIDENCE = 0.95
LEVEL = 0.05
MOST_SEEDS = 10_000
_ROUNDING = 1e-9  # a smaller standard deviation, relative to the values, is rounding error


# -- mean and interval ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Mean of n values, their standard deviation (n - 1) and the t interval of the mean.

    std: None for one value. low, high: None for one value, and for values that are all equal.
    """

    mean: float
    std: float | None
    n: int
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None without one."""
        return _half(self.low, self.high)


def summarize_values(
    values: Iterable[float], *, within: tuple[float, float] = (-math.inf, math.inf)
) -> Summary:
    """Mean, standard deviation and interval of at least one value.

    within: what the values can be, such as 0 to 100 for a percentage. The interval is cut there.

    >>> two = summarize_values([90.0, 92.0])  # t(0.975, 1) = 12.706, standard error 1
    >>> two.mean, round(two.std, 4), round(two.low, 2), round(two.high, 2)
    (91.0, 1.4142, 78.29, 103.71)
    >>> summarize_values([90.0, 92.0], within=(0.0, 100.0)).high
    100.0
    >>> summarize_values([90.0])
    Summary(mean=90.0, std=None, n=1, low=None, high=None)
    """
    numbers = list(values)
    if not numbers:
        raise ValueError("nothing to summarize: give at least one value")
    mean, std = _mean(numbers), _spread(numbers, scale=max(map(abs, numbers)))
    low, high = _interval(mean, std, len(numbers))
    if low is not None and high is not None:
        low, high = max(low, within[0]), min(high, within[1])
    return Summary(mean=mean, std=std, n=len(numbers), low=low, high=high)


# -- paired differences ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Mean of n paired differences (value minus base), its t interval and the p of a t-test.

    low, high, p: None for one pair, and for differences that are all equal.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    n: int

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None without one."""
        return _half(self.low, self.high)

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether the interval excludes 0; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0

    @property
    def std(self) -> float | None:
        """Standard deviation of the paired differences; None without an interval."""
        half = self.half_width
        return None if half is None else half / half_width(1.0, self.n)

    def is_within(self, margin: float) -> bool:
        """Whether the interval excludes every difference larger than the margin."""
        if self.low is None or self.high is None:
            return False
        return -margin <= self.low and self.high <= margin


def paired_difference(values: Mapping[int, float], base: Mapping[int, float]) -> Difference | None:
    """Values minus base over common seeds, with the paired t-test; None without common seeds.

    >>> paired_difference({0: 3.0, 1: 5.0, 7: 9.0}, {0: 2.0, 1: 3.0, 4: 0.0}).mean
    1.5
    """
    seeds = sorted(values.keys() & base.keys())
    if not seeds:
        return None
    differences = [values[seed] - base[seed] for seed in seeds]
    scale = max(abs(side[seed]) for side in (values, base) for seed in seeds)
    n, mean, std = len(seeds), _mean(differences), _spread(differences, scale=scale)
    low, high = _interval(mean, std, n)
    p = 2 * float(_stats().t.sf(abs(mean) / (std / math.sqrt(n)), n - 1)) if std else None
    return Difference(mean=mean, low=low, high=high, p=p, n=n)


# -- how many seeds -------------------------------------------------------------------------------


def half_width(std: float, n: int) -> float:
    """Half the width of the t interval of a mean of n values: t(0.975, n - 1) std / sqrt(n).

    >>> round(half_width(0.5, 3), 2), round(half_width(0.5, 10), 2)
    (1.24, 0.36)
    """
    return float(_stats().t.ppf((1 + CONFIDENCE) / 2, n - 1)) * std / math.sqrt(n)


def num_seeds_for(std: float, width: float) -> int:
    """The fewest values of this deviation whose interval has half a width of at most `width`.

    At most `MOST_SEEDS`.

    >>> num_seeds_for(0.5, 1.0), num_seeds_for(0.5, 0.36)
    (4, 10)
    """
    few, many = 1, 2
    while many < MOST_SEEDS and half_width(std, many) > width:
        few, many = many, min(2 * many, MOST_SEEDS)
    while many - few > 1:  # `few` is not enough, `many` is
        middle = (few + many) // 2
        few, many = (middle, many) if half_width(std, middle) > width else (few, middle)
    return many


def num_seeds_to_decide(difference: Difference, margin: float) -> int | None:
    """How many seeds the interval needs to exclude 0 or to lie within the margin.

    Assumes that mean and deviation stay as they are. For a mean m the interval needs half a width
    of less than max(|m|, margin - |m|). None without an interval.

    >>> num_seeds_to_decide(Difference(mean=0.1, low=-1.4, high=1.6, p=0.8, n=3), 1.0)
    5
    """
    if difference.std is None:
        return None
    mean = abs(difference.mean)
    return num_seeds_for(difference.std, max(mean, margin - mean))


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which p-values are significant at a family-wise error rate of `level` (Holm, 1979).

    The k-th smallest of m is compared with level / (m - k), k from 0, up to the first that fails.

    >>> holm([0.03, 0.001, 0.02, 0.9])
    [False, True, False, False]
    """
    is_significant = [False] * len(p_values)
    for k, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[i] > level / (len(p_values) - k):
            break
        is_significant[i] = True
    return is_significant


# -- rank correlation ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's rank correlation of n pairs; the interval is Bonett and Wright's.

    rho: None if one side is constant. low, high: None for n < 4 and for a perfect order.
    """

    rho: float | None
    low: float | None
    high: float | None
    n: int


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> Correlation:
    """Spearman's rho; interval by Fisher's z with the variance of Bonett and Wright (2000).

    z = atanh(rho) +- 1.96 sqrt((1 + rho^2 / 2) / (n - 3)), mapped back by tanh.

    >>> rank_correlation([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]).rho
    0.8
    """
    n = len(x)
    if len(y) != n:
        raise ValueError(f"{n} numbers against {len(y)}: a correlation needs pairs")
    x, y = list(map(round_digits, x)), list(map(round_digits, y))
    if n < 2 or len(set(x)) == 1 or len(set(y)) == 1:
        return Correlation(rho=None, low=None, high=None, n=n)
    rho = round(float(_stats().spearmanr(x, y).statistic), 12)  # a perfect order is exactly +-1
    if n < 4 or abs(rho) == 1:
        return Correlation(rho=rho, low=None, high=None, n=n)
    z = math.atanh(rho)
    half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return Correlation(rho=rho, low=math.tanh(z - half), high=math.tanh(z + half), n=n)


# -- Pareto front ---------------------------------------------------------------------------------


def pareto_front(
    costs: Sequence[float], values: Sequence[float], *, higher_is_better: bool = True
) -> list[bool]:
    """Which points are Pareto-optimal: no other is as cheap and as good, and one of them better.

    Numbers that agree in nine digits are equal. NaN is never on the front.

    >>> pareto_front([1, 2, 3, 4], [90.0, 89.0, 91.0, float("nan")])
    [True, False, True, False]
    """
    sign = 1 if higher_is_better else -1
    points = [
        (round_digits(cost), sign * round_digits(value))
        for cost, value in zip(costs, values, strict=True)
    ]
    return [
        not math.isnan(point[1])
        and not any(
            other != point and other[0] <= point[0] and other[1] >= point[1] for other in points
        )
        for point in points
    ]


def round_digits(number: float) -> float:
    """Round to nine significant digits, so that equal means stay equal after float arithmetic.

    >>> round_digits(98.99999999998), round_digits(99.00000000002), round_digits(98.9999999)
    (99.0, 99.0, 98.9999999)
    """
    return float(f"{number:.9g}")


# -- helpers --------------------------------------------------------------------------------------


def _mean(numbers: Sequence[float]) -> float:
    """The mean, also with infinities; NaN if they have both signs."""
    is_finite = all(map(math.isfinite, numbers))
    return fmean(numbers) if is_finite else sum(numbers) / len(numbers)


def _spread(numbers: Sequence[float], *, scale: float) -> float | None:
    """Standard deviation: 0 if all are equal but for rounding; None for one or non-finite ones."""
    if len(numbers) < 2 or not all(map(math.isfinite, numbers)):
        return None
    std = stdev(numbers)
    return std if std > _ROUNDING * scale else 0.0


def _half(low: float | None, high: float | None) -> float | None:
    return None if low is None or high is None else (high - low) / 2


def _interval(mean: float, std: float | None, n: int) -> tuple[float | None, float | None]:
    """The t interval of a mean; (None, None) without spread."""
    if not std:
        return None, None
    low, high = _stats().t.interval(CONFIDENCE, n - 1, loc=mean, scale=std / math.sqrt(n))
    return float(low), float(high)


def _stats() -> ModuleType:
    return require("scipy.stats", extra="train", purpose="statistics")
