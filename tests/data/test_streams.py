"""Streams of words: literal windows, division by ranks, complete evaluation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bitcycle.data import IGNORE, StreamPass, Streams

TOKENS = torch.arange(24, dtype=torch.int32)


def test_windows_are_rows_of_parallel_columns_and_targets_the_next_words():
    streams = Streams(TOKENS, batch_size=3, bptt=4)  # 7 rows: columns start at 0, 7, 14
    assert streams.steps_per_epoch == 2
    first, second = streams.batch_at(0), streams.batch_at(1)
    assert first.inputs.tolist() == [[0, 7, 14], [1, 8, 15], [2, 9, 16], [3, 10, 17]]
    assert first.targets.tolist() == [[1, 8, 15], [2, 9, 16], [3, 10, 17], [4, 11, 18]]
    assert second.inputs.tolist() == [[4, 11, 18], [5, 12, 19], [6, 13, 20]]
    assert first.inputs.dtype == first.targets.dtype == torch.int64


def test_state_starts_anew_with_every_epoch():
    streams = Streams(TOKENS, batch_size=3, bptt=4)
    assert [b.starts_stream for b in streams.from_step(0, 5)] == [True, False, True, False, True]
    assert [b.epoch for b in streams.from_step(0, 5)] == [0, 0, 1, 1, 2]
    assert torch.equal(streams.batch_at(1).inputs, streams.batch_at(3).inputs)


sizes = st.tuples(
    st.integers(2, 200), st.integers(1, 12), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)
)


@settings(deadline=None)
@given(sizes, st.integers(0, 50))
def test_ranks_and_micro_batches_divide_the_columns(size, step):
    number, batch_size, bptt, world_size, num_micro = size
    assume(number > batch_size >= world_size * num_micro)
    tokens = torch.arange(number)
    whole = Streams(tokens, batch_size=batch_size, bptt=bptt).batch_at(step)
    parts = [
        Streams(
            tokens,
            batch_size=batch_size,
            bptt=bptt,
            rank=rank,
            world_size=world_size,
            num_micro=num_micro,
        ).batch_at(step, micro)
        for micro in range(num_micro)
        for rank in range(world_size)
    ]
    assert torch.equal(torch.cat([p.inputs for p in parts], dim=1), whole.inputs)
    assert torch.equal(torch.cat([p.targets for p in parts], dim=1), whole.targets)
    assert sum(p.share for p in parts) == pytest.approx(1.0)


def test_starting_anywhere_equals_iterating_from_the_start():
    streams = Streams(torch.arange(100), batch_size=4, bptt=6, num_micro=2)
    everything = list(streams.from_step(0, 12))
    resumed = list(Streams(torch.arange(100), batch_size=4, bptt=6, num_micro=2).from_step(7, 12))
    assert [(b.step, b.micro) for b in resumed] == [(b.step, b.micro) for b in everything[14:]]
    assert all(
        torch.equal(a.inputs, b.inputs) for a, b in zip(resumed, everything[14:], strict=True)
    )


@settings(deadline=None)
@given(sizes)
def test_a_pass_predicts_every_word_but_the_first_once(size):
    number, batch_size, bptt, world_size, _ = size
    tokens = torch.arange(number)
    passes = [
        StreamPass(tokens, batch_size=batch_size, bptt=bptt, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    batches = [batch for one in passes for batch in one]
    pairs = torch.cat(
        [torch.stack([b.inputs, b.targets])[:, b.targets != IGNORE] for b in batches], dim=1
    )
    assert sorted(pairs[1].tolist()) == list(range(1, number))
    assert torch.equal(pairs[0] + 1, pairs[1])
    assert sum(b.share for b in batches) == pytest.approx(1.0)
    assert sum(b.num_targets for b in batches) == number - 1
    assert all(one_pass_starts(one) for one in passes)


def one_pass_starts(one_pass: StreamPass) -> bool:
    starts = [batch.starts_stream for batch in one_pass]
    return starts == [True] + [False] * (len(starts) - 1) if starts else len(one_pass) == 0


def test_a_process_without_a_column_has_no_batches():
    assert list(StreamPass(TOKENS, batch_size=1, bptt=5, rank=0, world_size=2)) == []
    assert len(StreamPass(TOKENS, batch_size=1, bptt=5, rank=1, world_size=2)) == 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Streams(TOKENS, batch_size=24, bptt=4), "24 words are too few for 24 streams"),
        (lambda: Streams(TOKENS, batch_size=3, bptt=0), r"bptt \(0\)"),
        (lambda: Streams(TOKENS, batch_size=3, bptt=4).batch_at(-1), r"step \(-1\)"),
        (lambda: Streams(TOKENS, batch_size=3, bptt=4).batch_at(0, 1), r"micro \(1\)"),
        (lambda: StreamPass(TOKENS[:1], batch_size=3, bptt=4), "no stream"),
        (lambda: StreamPass(TOKENS, batch_size=0, bptt=4), "batch_size 0"),
        (lambda: StreamPass(TOKENS, batch_size=2, bptt=0), r"bptt \(0\)"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
