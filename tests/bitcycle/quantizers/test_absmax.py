"""The rules of absmax and pow2: symmetric codes, zero on the grid, steps that are powers of two."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.quantizers import AbsMax, PowerOfTwo

from ..toys import randn
from .rounding import assert_unbiased

KINDS = pytest.mark.parametrize("kind", [AbsMax, PowerOfTwo])
numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20)


def levels(bits: int) -> Tensor:
    return torch.tensor(2**bits - 1, dtype=torch.int32)


def encode(rule: AbsMax, x: Tensor, bits: int, role: str = "act", **options):
    return rule.encode(role, x, levels(bits), rule.range_of(role, x), **options)


def test_check_values() -> None:
    x = torch.tensor([-0.9, 0.0, 0.14, 0.16, 0.6])
    # 3 bits: 3 steps to .9, so steps of .3
    expected = torch.tensor([-0.9, 0.0, 0.0, 0.3, 0.6])
    torch.testing.assert_close(encode(AbsMax(), x, 3).dequantize(), expected)


def test_one_bit_is_the_largest_magnitude_with_the_sign() -> None:
    x = torch.tensor([-0.3, 0.1, 0.8])
    torch.testing.assert_close(encode(AbsMax(), x, 1).dequantize(), torch.tensor([-0.8, 0.8, 0.8]))


@KINDS
@given(x=numbers, bits=st.integers(2, 8))
def test_codes_are_symmetric_and_zero_is_exact(kind: type[AbsMax], x: list, bits: int) -> None:
    tensor = torch.tensor([*x, 0.0])
    half = 2 ** (bits - 1)
    for sign in (1, -1):
        coded = encode(kind(), sign * tensor, bits, as_codes=True)
        assert coded.codes is not None
        assert int((coded.codes.int() - half).abs().max()) <= half - 1
        assert coded.offset == -half * coded.scale
        values = encode(kind(), sign * tensor, bits).dequantize()
        assert values[-1] == 0
        mirrored = sign * encode(kind(), tensor, bits).dequantize()
        ulp = 2.0**-22 * float(tensor.abs().max())  # values are q * s + offset
        torch.testing.assert_close(values, mirrored, rtol=0, atol=ulp)


@KINDS
def test_what_exceeds_a_running_range_is_clipped_symmetrically(kind: type[AbsMax]) -> None:
    x, within = torch.tensor([-9.0, 9.0]), (torch.tensor(-1.0), torch.tensor(1.0))
    low, high = kind().encode("act", x, levels(4), within).dequantize().tolist()
    assert low == pytest.approx(-high, rel=1e-6)
    assert high >= 1.0 - 1e-6


@KINDS
def test_weights_have_a_grid_per_output_channel(kind: type[AbsMax]) -> None:
    w = torch.tensor([[1.0, -0.5], [100.0, -50.0]])
    low, high = kind().range_of("weight", w, (0,))
    assert (low.tolist(), high.tolist()) == ([[-1.0], [-100.0]], [[1.0], [100.0]])
    assert kind().range_of("act", w)[1] == 100


@KINDS
def test_zeros_stay_zeros(kind: type[AbsMax]) -> None:
    zero = torch.zeros(3)
    for as_codes in (False, True):
        for bits in (1, 2, 8):
            assert torch.equal(encode(kind(), zero, bits, as_codes=as_codes).dequantize(), zero)


@KINDS
def test_a_stochastic_error_is_unbiased(kind: type[AbsMax]) -> None:
    e, rule = randn(60), kind()
    scale = encode(rule, e, 4, "error").scale
    inner = e.abs() < e.abs().max()
    assert_unbiased(
        e[inner],
        scale.expand(int(inner.sum())),
        lambda key: encode(rule, e, 4, "error", key=key).dequantize()[inner],
    )
    assert not kind(error_rounding="nearest").has_stochastic_error


@KINDS
def test_half_precision_keeps_its_dtype(kind: type[AbsMax]) -> None:
    assert encode(kind(), randn(8).half(), 8).dequantize().dtype == torch.float16


def test_codes_fit_a_byte_up_to_8_bits() -> None:
    ranges = {bits: AbsMax().integer_range(bits) for bits in (1, 2, 8, 9)}
    assert ranges == {1: (0, 1), 2: (1, 3), 8: (1, 255), 9: None}


def test_check_values_of_pow2() -> None:
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
