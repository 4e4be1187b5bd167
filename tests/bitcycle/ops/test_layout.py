"""Dense views of tensors in any order of dimensions."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.ops.layout import (
    element_numbers,
    flat,
    has_outer_rows,
    is_channels_last,
    is_dense,
    like,
    rows,
)

shapes = st.lists(st.integers(0, 4), max_size=5)


def _turned(shape: list[int], order: list[int]) -> Tensor:
    """A dense tensor of distinct numbers whose dimensions lie in memory in some order."""
    order = [d for d in order if d < len(shape)]
    base = torch.arange(math.prod(shape)).view([shape[d] for d in order])
    back = [order.index(d) for d in range(len(shape))]
    return base.permute(back)


@settings(max_examples=150, derandomize=True)
@given(shapes, st.permutations(range(5)))
def test_a_dense_tensor_is_its_memory_in_order(shape: list[int], order: list[int]) -> None:
    x = _turned(shape, order)
    assert list(x.shape) == shape
    assert is_dense(x)
    memory = flat(x)
    assert memory.tolist() == list(range(x.numel()))
    assert memory.data_ptr() == x.data_ptr()
    back = like(memory, x)
    assert torch.equal(back, x)
    assert back.shape == x.shape


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.permutations(range(5)))
def test_rows_are_the_first_dimension(shape: list[int], order: list[int]) -> None:
    x = _turned(shape, order)
    table = rows(x)
    assert table.shape == (shape[0], math.prod(shape[1:]))
    for row, part in zip(table, x, strict=True):
        assert sorted(row.tolist()) == sorted(part.flatten().tolist())
    if has_outer_rows(x):
        assert table.data_ptr() == x.data_ptr()
        assert torch.equal(like(table.flatten(), x), x)


def test_a_tensor_with_gaps_is_copied_row_by_row() -> None:
    x = torch.arange(12).view(3, 4)[:, ::2]
    assert not is_dense(x)
    assert not has_outer_rows(x)
    assert flat(x).tolist() == [0, 2, 4, 6, 8, 10]
    assert rows(x).tolist() == x.tolist()
    assert like(flat(x), x).is_contiguous()
    assert torch.equal(like(flat(x), x), x)


def test_an_expanded_tensor_is_not_dense() -> None:
    x = torch.ones(1, 3).expand(4, 3)
    assert not is_dense(x)
    assert flat(x).numel() == 12


def test_the_rows_of_a_transposed_matrix_are_not_stretches() -> None:
    x = torch.arange(6).view(2, 3).t()
    assert is_dense(x)
    assert not has_outer_rows(x)
    assert rows(x).tolist() == x.tolist()


def test_channels_last_tensors_are_numbered_in_memory_order() -> None:
    for num_dims in (4, 5):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        x = torch.zeros(2, 3, *[4] * (num_dims - 2))
        assert not is_channels_last(x)
        assert torch.equal(element_numbers(x).flatten(), torch.arange(x.numel(), dtype=torch.int32))
        x = x.contiguous(memory_format=formats[num_dims])
        assert is_channels_last(x)
        assert has_outer_rows(x)
        numbers = element_numbers(x)
        assert numbers.shape == x.shape
        assert flat(numbers).tolist() == list(range(x.numel()))


def test_other_tensors_are_numbered_row_by_row() -> None:
    x = torch.zeros(3, 2).t()
    assert element_numbers(x).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not is_channels_last(torch.zeros(2, 3, 4))
