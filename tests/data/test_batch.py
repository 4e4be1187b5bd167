"""Batch, its count of targets, and the division into slices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitcycle.data import IGNORE, Batch
from bitcycle.data.batches import check_position, slice_bounds


def test_padding_does_not_count_as_a_target():
    targets = torch.tensor([[1, 2], [3, IGNORE]])
    assert Batch(inputs=targets, targets=targets).num_targets == 3


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 40))
def test_slices_are_contiguous_complete_and_even(length, num_parts):
    bounds = [slice_bounds(length, num_parts, part) for part in range(num_parts)]
    assert [i for start, stop in bounds for i in range(start, stop)] == list(range(length))
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("rank", "world_size", "batch_size", "num_micro", "message"),
    [
        (2, 2, 8, 1, r"rank \(2\)"),
        (-1, 2, 8, 1, r"rank \(-1\)"),
        (0, 0, 8, 1, "world_size is 0"),
        (0, 1, 8, 0, r"num_micro \(0\)"),
        (0, 4, 7, 2, r"batch_size \(7\).*4 x 2"),
    ],
)
def test_an_impossible_division_is_refused(rank, world_size, batch_size, num_micro, message):
    with pytest.raises(ValueError, match=message):
        check_position(rank=rank, world_size=world_size, batch_size=batch_size, num_micro=num_micro)
