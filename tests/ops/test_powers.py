"""Powers of two are exact, and those that were asked for."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.ops.powers import nearest_power, power_above

positive = st.floats(2.0**-100, 2.0**100, width=32)


@given(positive)
def test_the_nearest_power_is_exact_and_nearest_in_the_exponent(x: float) -> None:
    power = nearest_power(torch.tensor(x)).item()
    mantissa, exponent = math.frexp(power)
    assert mantissa == 0.5
    assert exponent - 1 == round(math.log2(x))


@given(positive)
def test_the_power_above_is_exact_and_the_smallest_not_below(x: float) -> None:
    power = power_above(torch.tensor(x)).item()
    assert math.frexp(power)[0] == 0.5
    assert power / 2 < x <= power


def test_zero_has_no_power_and_stays_zero() -> None:
    zero = torch.zeros(2)
    assert nearest_power(zero).tolist() == power_above(zero).tolist() == [0.0, 0.0]


def test_what_is_not_finite_stays_visible() -> None:
    x = torch.tensor([math.nan, math.inf])
    assert not nearest_power(x).isfinite().any()
    assert not power_above(x).isfinite().any()
