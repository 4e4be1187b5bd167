"""Numbers as text, with as many digits as their uncertainty allows.

Numbers of one column have equal decimals: `common_decimals` finds them, the texts take them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from statistics import median_high

from bitcycle_lab.study.statistics import MOST_SEEDS, Correlation, Difference, Summary

DECIMALS = 2  # of a number whose uncertainty is not known
_MOST_DECIMALS = 6
_DIVERGED = 1e15  # a float has no decimals from there on
PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
POINTS = {"accuracy": " points"}  # the unit of a difference
UNITS = {"accuracy": " %"}


def decimals_for(uncertainty: float | None) -> int:
    """The decimals that show two significant digits of the uncertainty.

    Negative numbers round to tens or hundreds. Two decimals if the uncertainty is unknown or zero.

    >>> [decimals_for(u) for u in (0.2134, 1.26, 34.0, 512.0, 0.0996, None)]
    [2, 1, 0, -1, 2, 2]
    """
    if not uncertainty or not math.isfinite(uncertainty):
        return DECIMALS
    exponent = Decimal(f"{uncertainty:.1e}").adjusted()  # after rounding: 0.0996 is 0.10
    return min(1 - exponent, _MOST_DECIMALS)


def common_decimals(uncertainties: Iterable[float | None]) -> int:
    """The decimals of a column: two digits of its median uncertainty, one of its smallest.

    A tiny uncertainty adds at most two decimals; two decimals if none is known.

    >>> [common_decimals(u) for u in ((0.79, 0.59), (1.26, 0.21), (0.79, 1e-9), (9e9, 0.3), ())]
    [2, 1, 4, 1, 2]
    """
    known = [u for u in uncertainties if u and math.isfinite(u)]
    if not known:
        return DECIMALS
    fewest, most = decimals_for(median_high(known)), decimals_for(min(known))
    return min(max(fewest, most - 1), max(fewest + 2, DECIMALS))


def fixed(value: float, decimals: int, *, sign: bool = False) -> str:
    """A number with this many decimals, without "-0"; numbers from 1e15 on in powers of ten.

    >>> fixed(91.428, 2), fixed(0.31, 2, sign=True), fixed(-0.001, 2), fixed(1234.0, -1)
    ('91.43', '+0.31', '0.00', '1230')
    >>> fixed(1.7e28, 2), fixed(-1.7e28, 2, sign=True)
    ('1.7e+28', '-1.7e+28')
    """
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= _DIVERGED:
        return f"{value:{'+' if sign else ''}.3g}"
    step = Decimal(1).scaleb(-decimals)
    rounded = Decimal(repr(float(value))).quantize(step, rounding=ROUND_HALF_EVEN)
    rounded += 0  # no negative zero
    return f"{rounded:{'+' if sign and rounded else ''}.{max(decimals, 0)}f}"


def with_uncertainty(value: float, uncertainty: float | None, decimals: int | None = None) -> str:
    """The value and its uncertainty; by default to two significant digits of the latter.

    >>> with_uncertainty(91.4283, 0.2134), with_uncertainty(91.4283, None)
    ('91.43 ± 0.21', '91.43')
    """
    decimals = decimals_for(uncertainty) if decimals is None else decimals
    text = fixed(value, decimals)
    return text if uncertainty is None else f"{text} ± {fixed(uncertainty, decimals)}"


def summary_text(summary: Summary | None, decimals: int | None = None) -> str:
    """Mean and standard deviation; "-" for None."""
    return "-" if summary is None else with_uncertainty(summary.mean, summary.std, decimals)


def interval_text(low: float | None, high: float | None, decimals: int | None = None) -> str:
    """An interval, by default to two significant digits of its half width; "-" for None.

    >>> interval_text(-0.1042, 0.7211)
    '-0.10 to 0.72'
    """
    if low is None or high is None:
        return "-"
    decimals = decimals_for((high - low) / 2) if decimals is None else decimals
    return f"{fixed(low, decimals)} to {fixed(high, decimals)}"


def difference_text(difference: Difference | None, decimals: int | None = None) -> str:
    """A difference with its sign and interval; "-" for None.

    >>> difference_text(Difference(mean=0.3083, low=-0.1042, high=0.7211, p=0.11, n=5))
    '+0.31 (-0.10 to 0.72)'
    """
    if difference is None:
        return "-"
    half = difference.half_width
    decimals = decimals_for(half) if decimals is None else decimals
    mean = fixed(difference.mean, decimals, sign=True)
    if half is None:
        return mean
    return f"{mean} ({interval_text(difference.low, difference.high, decimals)})"


def p_text(p: float | None) -> str:
    """A p-value with three decimals; "-" for None.

    >>> p_text(0.034), p_text(0.2149), p_text(0.00004), p_text(None)
    ('0.034', '0.215', '< 0.001', '-')
    """
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def correlation_text(correlation: Correlation) -> str:
    """A correlation with two decimals and its interval; "-" without one.

    >>> correlation_text(Correlation(rho=0.8123, low=0.352, high=0.957, n=10))
    '0.81 (0.35 to 0.96)'
    """
    if correlation.rho is None:
        return "-"
    rho = fixed(correlation.rho, 2)
    if correlation.low is None or correlation.high is None:
        return rho
    return f"{rho} ({fixed(correlation.low, 2)} to {fixed(correlation.high, 2)})"


def three_digits(value: float) -> str:
    """A number with three significant digits, without an exponent.

    >>> three_digits(0.63417), three_digits(15.625), three_digits(267.4), three_digits(1.0)
    ('0.634', '15.6', '267', '1.00')
    """
    if not value or not math.isfinite(value):
        return f"{value:g}"
    exponent = Decimal(f"{abs(value):.2e}").adjusted()
    return fixed(value, max(2 - exponent, 0))


def bitops_text(bitops: float | None) -> str:
    """BitOPs with three significant digits and an SI prefix; "-" for None.

    >>> bitops_text(2.645e17), bitops_text(1.2e9), bitops_text(None)
    ('264 PBitOPs', '1.20 GBitOPs', '-')
    """
    if bitops is None:
        return "-"
    for size, prefix in PREFIXES:
        if bitops >= 0.9995 * size:
            return f"{three_digits(bitops / size)} {prefix}BitOPs"
    return f"{bitops:g} BitOPs"


def bitops_texts(column: Sequence[float | None]) -> list[str]:
    """BitOPs of a column with one prefix, three digits of the smallest and equal decimals.

    >>> bitops_texts([8.84e12, 5.67e11, None, 88.3e9])
    ['8,840.0 GBitOPs', '567.0 GBitOPs', '-', '88.3 GBitOPs']
    """
    known = [bitops for bitops in column if bitops and math.isfinite(bitops)]
    least = min(known, default=0.0)
    size, prefix = next((p for p in PREFIXES if least >= 0.9995 * p[0]), (1.0, ""))
    decimals = max(2 - Decimal(f"{least / size:.2e}").adjusted(), 0) if prefix else 0
    return ["-" if b is None else f"{b / size:,.{decimals}f} {prefix}BitOPs" for b in column]


def seeds_text(number: int) -> str:
    """A number of seeds, of which more than `MOST_SEEDS` are not counted.

    >>> seeds_text(7), seeds_text(10_000)
    ('7', 'more than 10,000')
    """
    return f"more than {MOST_SEEDS:,}" if number >= MOST_SEEDS else f"{number:,}"


def cost_text(relative: float | None, decimals: int | None = None) -> str:
    """A cost relative to the baseline's, by default with three digits; "-" for None."""
    if relative is None:
        return "-"
    return three_digits(relative) if decimals is None else fixed(relative, decimals)


def cost_decimals(column: Iterable[float | None]) -> int:
    """The decimals of relative costs: two digits of the smallest, at least two decimals.

    >>> cost_decimals([15.6, 1.0, 0.574]), cost_decimals([1.0, 0.0417]), cost_decimals([None])
    (2, 3, 2)
    """
    known = [relative for relative in column if relative and math.isfinite(relative)]
    return max(decimals_for(min(known, default=None)), DECIMALS)


def duration_text(seconds: float) -> str:
    """A time as text, in at most two units.

    >>> duration_text(4.21), duration_text(75), duration_text(7384)
    ('4.2 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
