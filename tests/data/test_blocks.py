"""Blocks of words: literal contents, complete evaluation, shuffled training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.data import IGNORE, Batches, Blocks, OnePass, Samples

TOKENS = torch.arange(11, dtype=torch.int32)


def test_training_blocks_leave_out_the_short_end():
    blocks = Blocks(tokens=TOKENS, length=4)
    assert len(blocks) == 2
    inputs, targets = blocks.fetch(np.array([1, 0]), None)
    assert inputs.tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert targets.tolist() == [[5, 6, 7, 8], [1, 2, 3, 4]]
    assert inputs.dtype == targets.dtype == torch.int64
    assert isinstance(blocks, Samples)


def test_evaluation_blocks_are_filled_up_with_targets_that_do_not_count():
    blocks = Blocks(tokens=TOKENS, length=4, keep_last=True)
    inputs, targets = blocks.fetch(np.array([2]), None)
    assert inputs[0, :2].tolist() == [8, 9]
    assert targets.tolist() == [[9, 10, IGNORE, IGNORE]]


@given(st.integers(2, 100), st.integers(1, 30), st.integers(1, 5))
def test_a_pass_predicts_every_word_but_the_first_once(number, length, batch_size):
    blocks = Blocks(tokens=torch.arange(number), length=length, keep_last=True)
    batches = list(OnePass(blocks, batch_size=batch_size))
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    assert targets[targets != IGNORE].tolist() == list(range(1, number))
    assert sum(batch.num_targets for batch in batches) == number - 1


def test_blocks_are_shuffled_for_training():
    batches = Batches(Blocks(tokens=torch.arange(101), length=10), batch_size=10, seed=0)
    inputs = batches.batch_at(0).inputs
    assert sorted(inputs[:, 0].tolist()) == list(range(0, 100, 10))
    assert inputs[:, 0].tolist() != list(range(0, 100, 10))


@pytest.mark.parametrize(("length", "message"), [(0, r"length \(0\)"), (11, "make no block of 11")])
def test_impossible_lengths_are_refused(length, message):
    with pytest.raises(ValueError, match=message):
        Blocks(tokens=TOKENS, length=length)


def test_blocks_move():
    assert Blocks(tokens=TOKENS, length=4).to("meta").tokens.device.type == "meta"
