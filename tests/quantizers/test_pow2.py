"""pow2 is absmax (tests there) with steps that are exact powers of two."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.quantizers import AbsMax, PowerOfTwo


def test_check_values() -> None:
    x = torch.tensor([-0.9, 0.0, 0.2, 0.3, 0.6])
    rule = PowerOfTwo()
    # 3 bits: .9 / 3 = .3, so steps of .5
    values = rule.encode("act", x, torch.tensor(7), rule.range_of("act", x)).dequantize()
    assert values.tolist() == [-1.0, 0.0, 0.0, 0.5, 0.5]


@given(st.floats(2.0**-40, 2.0**40, width=32), st.integers(1, 16))
def test_steps_are_the_smallest_powers_of_two_that_clip_nothing(m: float, bits: int) -> None:
    x, levels = torch.tensor([-m, m / 3]), torch.tensor(2**bits - 1)
    steps = []
    for rule in (PowerOfTwo(), AbsMax()):
        scale = rule.encode("act", x, levels, rule.range_of("act", x)).scale
        assert scale is not None
        steps.append(scale.item())
    power, exact = steps
    assert math.frexp(power)[0] == 0.5
    assert power / 2 < exact <= power
