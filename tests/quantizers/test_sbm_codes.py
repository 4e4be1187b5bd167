"""sbm's codes: the same grid as its values, in either carrier, at any width up to 8 bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.quantizers import SBM
from bitcycle.quantizers.base import Quantized

KEY = torch.tensor([123, 456], dtype=torch.int32)
properties = settings(max_examples=100, derandomize=True, deadline=None)
tensors = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=30).map(torch.tensor)
carriers = st.sampled_from((torch.uint8, torch.int8))


def _encode(
    x: Tensor, bits: int, carrier: torch.dtype | None, role: str = "act",
    keep: tuple[int, ...] = (), key: Tensor | None = None, **options: object,
) -> Quantized:  # fmt: skip
    rule = SBM(**options)
    levels = torch.tensor(2**bits - 1, dtype=torch.int32)
    return rule.encode(role, x, levels, rule.range_of(role, x, keep), key, carrier)


def _half_step(codes: Quantized, x: Tensor) -> float:
    """Far less than a step, and more than float32 rounding of the shifted offset."""
    assert codes.scale is not None
    return float(codes.scale.max()) * 1e-3 + float(x.abs().max()) * 1e-6


@properties
@given(tensors, st.integers(1, 8), carriers, st.sampled_from(("real", "integer")))
def test_codes_stand_for_the_values_of_the_grid(
    x: Tensor, bits: int, carrier: torch.dtype, zero: str
) -> None:
    codes, values = (_encode(x, bits, each, zero=zero) for each in (carrier, None))
    assert codes.codes.dtype == carrier
    assert codes.values is None
    assert codes.half == 2.0 ** (bits - 1)
    torch.testing.assert_close(
        codes.dequantize(), values.dequantize(), rtol=0, atol=_half_step(codes, x)
    )
    whole = codes.codes.int() + (2 ** (bits - 1) if carrier == torch.int8 else 0)
    assert int(whole.min()) >= 0
    assert int(whole.max()) <= 2**bits - 1


@properties
@given(tensors, st.integers(1, 8))
def test_unsigned_codes_give_the_values_to_the_last_bit(x: Tensor, bits: int) -> None:
    codes, values = (_encode(x, bits, each) for each in (torch.uint8, None))
    assert torch.equal(codes.dequantize(), values.dequantize())


@properties
@given(st.floats(-1e6, 1e6, width=32), st.integers(1, 8), carriers)
def test_a_constant_is_its_offset_to_the_last_bit(
    value: float, bits: int, carrier: torch.dtype
) -> None:
    x = torch.full((3, 2), value)
    for keep in ((), (0,)):
        codes = _encode(x, bits, carrier, "weight" if keep else "act", keep)
        assert torch.equal(codes.dequantize(), x)
        assert not codes.scale.any()


def test_weights_have_signed_codes_per_channel() -> None:
    w = torch.tensor([[0.0, 0.2, 1.0], [0.0, 20.0, 100.0]])
    codes = _encode(w, 2, torch.int8, "weight", (0,))
    assert codes.codes.tolist() == [[-2, -1, 1], [-2, -1, 1]]
    assert codes.scale.shape == codes.offset.shape == (2, 1)
    torch.testing.assert_close(
        codes.dequantize(), torch.tensor([[0.0, 1 / 3, 1.0], [0.0, 100 / 3, 100.0]])
    )


def test_columns_can_have_a_grid_each() -> None:
    w = torch.tensor([[0.0, 0.0], [0.2, 20.0], [1.0, 100.0]])
    codes = _encode(w, 2, torch.int8, "weight", (1,))
    assert codes.codes.tolist() == [[-2, -2], [-1, -1], [1, 1]]
    assert codes.scale.shape == (1, 2)


def test_a_stochastic_error_has_unsigned_codes_whatever_is_asked() -> None:
    e = torch.randn(40, generator=torch.Generator().manual_seed(0))
    for carrier in (torch.uint8, torch.int8):
        codes = _encode(e, 3, carrier, "error", key=KEY)
        assert codes.codes.dtype == torch.uint8
        values = _encode(e, 3, None, "error", key=KEY)
        assert torch.equal(codes.dequantize(), values.dequantize())


def test_both_products_of_a_backward_pass_get_the_same_codes() -> None:
    e, rule = torch.randn(5), SBM()
    within = rule.range_of("error", e)
    first, second = rule.encode_error(e, torch.tensor(7), within, KEY, torch.uint8)
    assert first is second
    assert first.codes is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_codes_of_half_precision_tensors_have_float32_scales(dtype: torch.dtype) -> None:
    x = torch.randn(20, generator=torch.Generator().manual_seed(0)).to(dtype)
    codes = _encode(x, 6, torch.uint8)
    assert codes.scale.dtype == codes.offset.dtype == torch.float32
    assert torch.equal(codes.codes, _encode(x.float(), 6, torch.uint8).codes)


def test_channels_last_tensors_have_channels_last_codes() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for role, keep in (("act", ()), ("weight", (0,)), ("weight", (1,)), ("error", ())):
        codes = _encode(x, 4, torch.uint8, role, keep, key=KEY)
        assert codes.codes.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), ()])
def test_empty_and_0_d_tensors_have_codes(shape: tuple[int, ...]) -> None:
    x = torch.full(shape, 0.3)
    codes = _encode(x, 3, torch.int8)
    assert codes.codes.shape == x.shape
    assert torch.equal(codes.dequantize(), x)


def test_a_nan_shows_in_the_scale() -> None:
    codes = _encode(torch.tensor([1.0, float("nan"), 2.0]), 4, torch.uint8)
    assert codes.scale.isnan()
    assert codes.dequantize().isnan().all()


def test_the_weight_has_a_second_grid_when_grad_input_gets_its_own() -> None:
    assert SBM().weight_grids == 1
    assert SBM(grad_input_weight="per_input_channel").weight_grids == 2
    with pytest.raises(ValueError, match=r"unknown SBM grad_input_weight 'own'; known: per_input"):
        SBM(grad_input_weight="own")
