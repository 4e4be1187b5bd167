"""Values and codes of the affine grid are one grid."""

from __future__ import annotations

import pytest
import torch

from bitcycle.quantizers.grid import largest, put_on_grid, work_dtype

X = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
SCALE, OFFSET, LEVELS = torch.tensor(3 / 7), torch.tensor(-1.0), torch.tensor(7.0)
YES = torch.tensor(True)
KEY = torch.tensor([3, 4], dtype=torch.int32)


@pytest.mark.parametrize("key", [None, KEY])
def test_uint8_codes_multiply_out_to_the_values_bit_for_bit(key: torch.Tensor | None) -> None:
    values = put_on_grid(X, SCALE, OFFSET, LEVELS, key=key, has_steps=YES)
    codes = put_on_grid(X, SCALE, OFFSET, LEVELS, key=key, carrier=torch.uint8, has_steps=YES)
    assert torch.equal(codes.dequantize(), values.dequantize())


def test_int8_codes_are_the_same_ones_moved_down_by_half() -> None:
    up = put_on_grid(X, SCALE, OFFSET, LEVELS, carrier=torch.uint8, has_steps=YES)
    down = put_on_grid(X, SCALE, OFFSET, LEVELS, carrier=torch.int8, has_steps=YES)
    assert up.codes is not None
    assert down.codes is not None
    assert down.half == 4
    assert (up.codes.int() - down.codes.int()).tolist() == [4] * 5
    torch.testing.assert_close(up.dequantize(), down.dequantize())


def test_without_steps_codes_are_the_offset_to_the_last_bit() -> None:
    x = torch.full((3,), 0.1)
    for carrier in (torch.uint8, torch.int8):
        coded = put_on_grid(x, SCALE, x[0], LEVELS, carrier=carrier, has_steps=~YES)
        assert torch.equal(coded.dequantize(), x)


def test_half_precision_is_rounded_in_float32_and_returned_as_it_came() -> None:
    values = put_on_grid(X.half(), SCALE, OFFSET, LEVELS, has_steps=YES).dequantize()
    assert values.dtype == torch.float16
    assert work_dtype(X.bfloat16()) == torch.float32
    assert work_dtype(X.double()) == torch.float64


def test_the_largest_magnitude_may_be_at_either_end() -> None:
    assert largest(torch.tensor(-3.0), torch.tensor(2.0)) == 3
    assert largest(torch.tensor(-1.0), torch.tensor(2.0)) == 2
