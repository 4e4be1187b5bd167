"""Centred codes, folds, and the results of products with them."""

import math

import pytest
import torch

from bitcycle.gpu import centred, folds, grids
from bitcycle.native.encode import Rule
from tests.bitcycle.gpu.interpreted.comparison import assert_same_bits, levels_of

KEY = torch.tensor([11, -12], dtype=torch.int32)


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2 + 0.3


def values_of(made):
    return made.scale.double() * made.codes.double() + made.residual.double()


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("bits", [1, 2, 5, 8])
@pytest.mark.parametrize("transposes", [False, True])
def test_centred_codes_are_the_codes_around_the_zero_point(rule, bits, transposes):
    x, levels = numbers(7, 45, seed=bits), levels_of(bits)
    for keep, key in ((None, KEY), (0, None)):
        made = centred.quantize_centred(x, keep, levels, rule, key=key, transposes=transposes)
        codes = grids.quantize(x, keep, levels, rule, key=key, dtype=torch.uint8)
        z = (-codes.offset / codes.scale).round().clamp(0, 2**bits - 1)
        assert torch.equal(made.codes.float(), codes.numbers.float() - z)
        assert_same_bits(made.scale, codes.scale)
        assert_same_bits(made.residual, codes.offset + codes.scale * z)
        assert torch.equal(made.sums, made.codes.float().sum(1))
        assert torch.equal(made.low, codes.low)
        assert torch.equal(made.high, codes.high)
        if transposes:
            assert torch.equal(made.transposed, made.codes.t())


def test_the_residual_is_at_most_half_a_step_around_zero():
    made = centred.quantize_centred(numbers(40, 30), None, levels_of(4), Rule.FROM_LOW)
    assert made.low < 0 < made.high
    assert made.residual.abs() <= made.scale / 2 * (1 + 1e-6)
    assert made.codes.min() < 0 < made.codes.max()
    symmetric = centred.quantize_centred(numbers(4, 30), 0, levels_of(4), Rule.SYMMETRIC)
    assert symmetric.residual.tolist() == [[0.0]] * 4


def test_constants_are_their_residual_and_a_nan_shows_in_the_scale():
    made = centred.quantize_centred(torch.full((2, 5), -7.5), None, levels_of(8), Rule.FROM_LOW)
    assert values_of(made).unique().tolist() == [-7.5]
    x = numbers(3, 6)
    x[1, 2] = math.nan
    made = centred.quantize_centred(x, 0, levels_of(8), Rule.FROM_LOW)
    assert made.scale.flatten().isnan().tolist() == [False, True, False]
    assert made.codes.isfinite().all()


def test_rows_of_a_convolution_weight_share_the_scale_of_their_channel():
    x = numbers(3, 4, 5)
    made = centred.quantize_centred(x, 0, levels_of(8), Rule.FROM_LOW)
    assert made.sums.shape == (3, 4)
    error = (values_of(made) - x).abs().amax((1, 2), keepdim=True)
    assert (error <= made.scale * 0.5001).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [1.0, 2.0**-100])
def test_the_result_of_a_product(dtype, factor):
    x, w, bias = numbers(9, 50) * factor, numbers(150, 50, seed=1), numbers(150, seed=2) * factor
    a = centred.quantize_centred(x, None, levels_of(8), Rule.FROM_LOW)
    for keep, added in ((0, bias), (None, None)):
        b = centred.quantize_centred(w, keep, levels_of(8), Rule.FROM_LOW)
        sums = a.codes.float() @ b.codes.float().t()
        out = folds.finish(
            sums, (a.scale, a.residual, a.sums), (b.scale, b.residual, b.sums), 50, added,
            dtype=dtype,
        )  # fmt: skip
        exact = values_of(a) @ values_of(b).t() + (0 if added is None else added.double())
        size = values_of(a).abs() @ values_of(b).abs().t()
        assert out.dtype == dtype
        bound = 8 * 2.0**-24 * size + (2.0**-8 * exact.abs() if dtype is torch.bfloat16 else 0)
        assert ((out.double() - exact).abs() <= bound).all()


def test_a_product_of_rows_with_a_scale_each():
    a = centred.quantize_centred(numbers(9, 20), 0, levels_of(6), Rule.WITH_ZERO)
    b = centred.quantize_centred(numbers(5, 20, seed=3), None, levels_of(6), Rule.WITH_ZERO)
    sums = a.codes.float() @ b.codes.float().t()
    operands = (a.scale, a.residual, a.sums), (b.scale, b.residual, b.sums)
    exact = values_of(a) @ values_of(b).t()
    torch.testing.assert_close(folds.finish(sums, *operands, 20).double(), exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("factor", [1.0, 1e-30, 1e-37])
def test_a_fold_is_within_its_bound(bits, factor):
    scales = torch.logspace(-3, 0, 40)[:, None]
    w = numbers(40, 50) * scales * factor
    made = centred.quantize_centred(w, 0, levels_of(bits), Rule.FROM_LOW)
    folded = folds.fold(made.codes, made.scale, made.residual)
    whole = folded.high.double() * 256 + folded.low.double()
    assert torch.equal(folded.sums.double(), whole.sum(0))
    assert whole.abs().max() <= 32767
    assert (folded.lower == (1.0 if factor == 1.0 else 2.0**-96)).all()
    exact = values_of(made)
    largest = exact.abs().amax(0)
    error = (whole * folded.unit.double() * folded.lower.double() - exact).abs().amax(0)
    assert (error <= 1.01 * 2.0**-16 * largest).all()

    e = centred.quantize_centred(numbers(6, 40, seed=4) * 1e-3, None, levels_of(8), Rule.FROM_LOW)
    sums = [e.codes.float() @ plane.float() for plane in (folded.high, folded.low)]
    found = folds.finish_folded(*sums, (e.scale, e.residual), folded)
    bound = 1.05 * 2.0**-16 * values_of(e).abs().sum(1, keepdim=True) * largest
    assert ((found.double() - values_of(e) @ exact).abs() <= bound + 2e-45).all()


def test_weights_that_are_zero_fold_to_zero():
    w = numbers(6, 5)
    w[:, 2] = 0
    made = centred.quantize_centred(w, 0, levels_of(8), Rule.SYMMETRIC)
    folded = folds.fold(made.codes, made.scale, made.residual)
    assert folded.high[:, 2].tolist() == folded.low[:, 2].tolist() == [0] * 6
    assert folded.unit[2] == 0
    assert folded.unit[1] > 0


def test_a_nan_shows_in_the_unit():
    codes = torch.ones(3, 2, dtype=torch.bfloat16)
    scale = torch.tensor([1.0, math.nan, 2.0])
    folded = folds.fold(codes, scale, torch.zeros(3))
    assert folded.unit.isnan().all()
