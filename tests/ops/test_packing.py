"""Packing: fewer bytes, and everything comes back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitcycle.ops.packing import pack_nibbles, unpack_nibbles

properties = settings(max_examples=100, derandomize=True, deadline=None)
RANGES = {torch.uint8: (0, 15), torch.int8: (-8, 7)}


@properties
@given(st.sampled_from((torch.uint8, torch.int8)), st.data())
def test_nibbles_come_back(dtype: torch.dtype, data: st.DataObject) -> None:
    low, high = RANGES[dtype]
    numbers = data.draw(st.lists(st.integers(low, high), max_size=33))
    codes = torch.tensor(numbers, dtype=dtype)
    packed = pack_nibbles(codes)
    assert packed.dtype == torch.uint8
    assert packed.numel() == (len(numbers) + 1) // 2
    back = unpack_nibbles(packed, len(numbers), dtype)
    assert back.dtype == dtype
    assert back.tolist() == numbers


@pytest.mark.parametrize("dtype", RANGES)
def test_every_pair_of_nibbles_comes_back(dtype: torch.dtype) -> None:
    low, high = RANGES[dtype]
    each = torch.arange(low, high + 1, dtype=dtype)
    codes = torch.cartesian_prod(each, each).flatten()
    packed = pack_nibbles(codes)
    assert packed.unique().numel() == 256
    assert torch.equal(unpack_nibbles(packed, codes.numel(), dtype), codes)


def test_packing_is_equal_in_eager_and_compiled_code() -> None:
    def both(codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        packed = pack_nibbles(codes)
        return packed, unpack_nibbles(packed, codes.numel(), torch.int8)

    codes = torch.arange(-8, 7, dtype=torch.int8)
    compiled = torch.compile(both, fullgraph=True)(codes)
    assert all(map(torch.equal, compiled, both(codes)))
    assert torch.equal(compiled[1], codes)
