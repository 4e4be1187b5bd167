"""The rules of wageubn: check values, exact powers of two, the weight gradient's stages."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.quantizers import WAGEUBN
from bitcycle.quantizers.wageubn import STAGES, activation_error, flag_error

from ..toys import randn
from .rounding import assert_unbiased

E = torch.tensor([0.3, -0.1, 0.01, 0.001, 0.0001])
KEY = torch.tensor([1, 2], dtype=torch.int32)


def levels(bits: int) -> Tensor:
    return torch.tensor(2**bits - 1, dtype=torch.int32)


def quantize(role: str, x: Tensor, bits: int, **options) -> Tensor:
    rule = WAGEUBN(**options)
    return rule.encode(role, x, levels(bits), rule.range_of(role, x)).dequantize()


def test_the_check_values_of_both_errors() -> None:
    # the specification's: R = .25
    activation = quantize("error", E[:3], 8, error_form="activation")
    expected = torch.tensor([0.248047, -0.099609, 0.009766])
    torch.testing.assert_close(activation, expected, rtol=0, atol=1e-6)
    flag = quantize("error", E, 8)
    expected = torch.tensor([0.248047, -0.099609, 0.009766, 0.00100708, 0.000106812])
    torch.testing.assert_close(flag, expected, rtol=0, atol=5e-7)
    torch.testing.assert_close(flag[3:], expected[3:], rtol=0, atol=5e-9)


def test_weights_are_fixed_point_and_clipped_below_1() -> None:
    w = torch.tensor([-3.0, -0.26, 0.124, 0.126, 0.99])
    # 3 bits: steps of 1/4 up to 3/4
    assert quantize("weight", w, 3).tolist() == [-0.75, -0.25, 0.0, 0.25, 0.75]


def test_acts_are_fixed_point_and_not_clipped() -> None:
    a = torch.tensor([-3.1, 0.126, 17.3])
    assert quantize("act", a, 3).tolist() == [-3.0, 0.25, 17.25]


def test_the_scale_is_the_step_of_the_fixed_point() -> None:
    x, rule = randn(16), WAGEUBN()
    for role, bits, step in (("weight", 8, 2**-7), ("act", 4, 2**-3)):
        found = rule.encode(role, x, levels(bits), rule.range_of(role, x))
        assert found.scale.item() == step  # 2^(1 - k)
        assert torch.equal(found.dequantize() / step, (found.dequantize() / step).round())


@given(st.floats(2.0**-40, 2.0**20, width=32), st.integers(2, 12))
def test_errors_are_whole_multiples_of_an_exact_power_of_two(m: float, bits: int) -> None:
    e = torch.tensor([m, -0.7 * m, 0.3 * m, 0.01 * m])
    r = 2.0 ** round(math.log2(m))
    half = 2 ** (bits - 1)
    for form, finest in ((activation_error, r / half), (flag_error, r / half / half)):
        values = form(e, levels(bits), torch.tensor(m)).double()
        steps = values / finest
        assert torch.equal(steps, steps.round())
        assert float(values.abs().max()) <= r - r / half


def test_zeros_stay_zeros() -> None:
    for form in ("flag", "activation"):
        for bits in (2, 8):
            zero = torch.zeros(5)
            assert torch.equal(quantize("error", zero, bits, error_form=form), zero)
            assert torch.equal(WAGEUBN().encode_grad(zero, levels(bits), KEY), zero)


def test_the_flag_form_is_finer_below_its_first_step() -> None:
    e = torch.tensor([1.0, 1 / 300])  # s = 1/128 at 8 bits, so the second is below it
    coarse, fine = (quantize("error", e, 8, error_form=f)[1] for f in ("activation", "flag"))
    assert coarse == 0
    assert abs(fine.item() - 1 / 300) <= 2.0**-15


def test_the_gradient_is_normalized_and_on_a_15_bit_grid() -> None:
    g = 1e-5 * randn(40, 30)
    values = WAGEUBN().encode_grad(g, levels(8), KEY)
    assert torch.equal(values * 2**14, (values * 2**14).round())
    assert float(values.abs().max()) == 127 / 2**14
    tiny = WAGEUBN().encode_grad(g / 1024, levels(8), KEY)  # R falls with g
    assert torch.equal(tiny, values)


def test_a_gradient_of_other_bits_has_their_values_and_the_same_size() -> None:
    for bits in (2, 3, 6, 8):
        g = randn(50, 40)
        dr = max(2, 2 ** (bits - 1))
        values = WAGEUBN().encode_grad(g, levels(bits), KEY)
        steps = values * 2**14 / (128 / dr)
        assert torch.equal(steps, steps.round())
        assert float(steps.abs().max()) == dr - 1
        assert float(values.abs().max()) == (dr - 1) / dr / 128


@pytest.mark.parametrize("bits", [4, 8])
def test_the_gradient_s_rounding_is_unbiased(bits: int) -> None:
    g = randn(60) * 0.25
    g[0] = 1.0  # R = 1; the others stay well inside
    rule, dr = WAGEUBN(), 2 ** (bits - 1)
    scale = 2.0**-7
    step = torch.full((59,), scale / dr)
    assert_unbiased(g[1:] * scale, step, lambda key: rule.encode_grad(g, levels(bits), key)[1:])


def test_the_gradient_s_levels_fall_over_the_run() -> None:
    for step, dr in ((0, 128), (59, 128), (60, 32), (79, 32), (80, 8), (90, 2), (99, 2)):
        rule, g = WAGEUBN(total_steps=100), randn(1000)
        values = rule.encode_grad(g, levels(8), KEY, torch.tensor(step))
        assert float(values.abs().max()) == (dr - 1) / 2**14
        assert [value for _, value in STAGES] == [128, 128, 32, 8, 2]


def test_a_scheduler_s_step_reaches_the_gradient() -> None:
    rule = WAGEUBN(total_steps=10, first_last="quantized")
    layer = bc.quantize_model(nn.Linear(6, 5), rule)
    scheduler = bc.PrecisionScheduler(layer, forward=8, backward=8, total_steps=10)
    largest = []
    for _ in range(10):
        layer.zero_grad()
        layer(randn(8, 6)).backward(randn(8, 5, seed=2))
        largest.append(float(layer.weight.grad.abs().max()) * 2**14)
        scheduler.step()
    assert largest == [127.0] * 6 + [31.0] * 2 + [7.0, 1.0]


def test_gradients_of_two_calls_do_not_share_their_noise() -> None:
    layer = bc.quantize_model(nn.Linear(20, 30), WAGEUBN(first_last="quantized"))
    bc.set_precision(layer, bc.Precision(grad=4))  # no error bits
    grads = []
    for _ in range(2):
        layer.zero_grad()
        layer(randn(8, 20)).backward(randn(8, 30, seed=2))
        grads.append(layer.weight.grad.clone())
    assert not torch.equal(*grads)


def test_half_precision_keeps_its_dtype() -> None:
    for role in ("weight", "act", "error"):
        assert quantize(role, randn(8).half(), 8).dtype == torch.float16
    assert WAGEUBN().encode_grad(randn(8).bfloat16(), levels(8), KEY).dtype == torch.bfloat16


def test_one_bit_is_refused_for_it_would_leave_only_zeros() -> None:
    layer = bc.quantize_model(nn.Linear(3, 2), WAGEUBN(first_last="quantized"))
    with pytest.raises(ValueError, match="w1"):
        bc.set_precision(layer, "w1")


def test_it_has_a_rule_for_every_role_and_no_codes() -> None:
    rule = WAGEUBN()
    assert rule.roles == {"weight", "act", "error", "grad"}
    assert rule.integer_range(8) is None
    assert rule.first_last == "float32"
    assert (rule.norm_rule, WAGEUBN(norm="batch").norm_rule) == ("grid", None)
