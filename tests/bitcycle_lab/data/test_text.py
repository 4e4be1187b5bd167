"""PTB and WikiText: files, vocabulary, streams and blocks of words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bitcycle_lab.data import (
    IGNORE,
    Batches,
    Blocks,
    Samples,
    StreamPass,
    Streams,
    load_corpus,
)
from bitcycle_lab.data import text as module
from bitcycle_lab.data.text import build_vocabulary, cached_vocabulary, default_cache_dir

from .layouts import write_text

WIKI = "wiki.{}.tokens"


def decode(corpus, tokens) -> str:
    return " ".join(corpus.vocabulary[number] for number in tokens)


@pytest.mark.parametrize(
    ("name", "below", "file_name"),
    [
        ("ptb", ".", "ptb.{}.txt"),
        ("ptb", "simple-examples/data", "ptb.{}.txt"),
        ("wikitext-2", ".", WIKI),
        ("wikitext-2", "wikitext-2", WIKI),
        ("wikitext-103", "wikitext-103", WIKI),
    ],
)
def test_texts_are_read_where_people_have_them(tmp_path, name, below, file_name):
    write_text(tmp_path / below, file_name)
    corpus = load_corpus(name, tmp_path, cache_dir=tmp_path / "cache")
    assert decode(corpus, corpus.train) == (
        "the cat sat on the <unk> <eos> the dog sat <eos> <eos>"
    )
    assert corpus.train.dtype == torch.int32


def test_words_that_training_has_not_seen_are_unknown(tmp_path):
    write_text(tmp_path)
    corpus = load_corpus("ptb", tmp_path, cache_dir=tmp_path / "cache")
    assert decode(corpus, corpus.validation) == "the dog <unk> the cat <eos>"
    assert decode(corpus, corpus.test) == "<unk> cat sat <eos>"


@pytest.mark.parametrize(
    ("split", "content", "problem"),
    [
        ("train", b"", "empty"),
        ("valid", b"\n\n\n", "no words"),
        ("train", b"abc \xff\xfe def\n", "not UTF-8"),
        ("test", b"abc \xff\xfe def\n", "not UTF-8"),
    ],
)
def test_a_damaged_text_is_named_with_the_problem(tmp_path, split, content, problem):
    write_text(tmp_path)
    (tmp_path / f"ptb.{split}.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"ptb\.{split}\.txt: .*{problem}"):
        load_corpus("ptb", tmp_path, cache_dir=tmp_path / "cache")


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "train.txt"
    path.write_text(" b a b \n c \n\n", encoding="utf-8")
    return path


def test_words_are_ordered_by_count_then_alphabet_with_eos_and_unk(text):
    assert build_vocabulary(text) == ("<eos>", "b", "a", "c", "<unk>")


def test_only_a_newline_ends_a_line(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes("a\x0cb\u2028c\r d\n".encode())
    assert build_vocabulary(path) == ("<eos>", "a", "b", "c", "d", "<unk>")


def test_the_second_time_the_text_is_not_counted(text, tmp_path, monkeypatch):
    first = cached_vocabulary(text, tmp_path / "cache")
    monkeypatch.setattr(module, "build_vocabulary", pytest.fail)
    assert cached_vocabulary(text, tmp_path / "cache") == first
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".json"]


def test_a_changed_text_is_counted_again(text, tmp_path):
    cached_vocabulary(text, tmp_path)
    text.write_text("z z\n", encoding="utf-8")
    assert cached_vocabulary(text, tmp_path) == ("z", "<eos>", "<unk>")


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: "",
        lambda content: content[:20],
        lambda content: "[]",
        lambda content: content.replace('"b"', '"a"'),
        lambda content: content.replace('"<eos>", ', ""),
        lambda content: content.replace('"a"', "1"),
        lambda content: json.dumps({**json.loads(content), "sha256": "0"}),
    ],
)
def test_a_damaged_cache_is_rebuilt(text, tmp_path, damage):
    folder = tmp_path / "cache"
    expected = cached_vocabulary(text, folder)
    (cache,) = folder.iterdir()
    intact = cache.read_text()
    cache.write_text(damage(intact))
    assert cached_vocabulary(text, folder) == expected
    assert cache.read_text() == intact


def test_a_cache_that_cannot_be_written_is_done_without(text, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    assert cached_vocabulary(text, blocked / "cache") == build_vocabulary(text)


def test_a_write_that_fails_leaves_nothing_behind(text, tmp_path, monkeypatch):
    def fail(*_args):
        raise OSError("disk full")

    monkeypatch.setattr(module.os, "fsync", fail)
    assert cached_vocabulary(text, tmp_path / "cache") == build_vocabulary(text)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_users_cache_folder_is_the_default(text, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "bitcycle"
    cached_vocabulary(text)
    assert len(list(default_cache_dir().iterdir())) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "bitcycle"


TOKENS = torch.arange(24, dtype=torch.int32)


def test_windows_are_rows_of_parallel_columns_and_targets_the_next_words():
    streams = Streams(TOKENS, batch_size=3, bptt=4)  # 7 rows: columns start at 0, 7, 14
    assert streams.steps_per_epoch == 2
    first, second = streams.batch_at(0), streams.batch_at(1)
    assert first.inputs.tolist() == [[0, 7, 14], [1, 8, 15], [2, 9, 16], [3, 10, 17]]
    assert first.targets.tolist() == [[1, 8, 15], [2, 9, 16], [3, 10, 17], [4, 11, 18]]
    assert second.inputs.tolist() == [[4, 11, 18], [5, 12, 19], [6, 13, 20]]
    assert first.inputs.dtype == first.targets.dtype == torch.int64


sizes = st.tuples(
    st.integers(2, 200), st.integers(1, 12), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)
)


@settings(max_examples=50)
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


@settings(max_examples=50)
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
        (lambda: Streams(TOKENS, batch_size=24, bptt=4), "24 words"),
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


WORDS = torch.arange(11, dtype=torch.int32)


def test_training_blocks_leave_out_the_short_end():
    blocks = Blocks(tokens=WORDS, length=4)
    assert len(blocks) == 2
    inputs, targets = blocks.fetch(np.array([1, 0]), None)
    assert inputs.tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert targets.tolist() == [[5, 6, 7, 8], [1, 2, 3, 4]]
    assert inputs.dtype == targets.dtype == torch.int64
    assert isinstance(blocks, Samples)
    assert blocks.to("meta").tokens.device.type == "meta"


def test_evaluation_blocks_are_filled_up_with_targets_that_do_not_count():
    blocks = Blocks(tokens=WORDS, length=4, keep_last=True)
    inputs, targets = blocks.fetch(np.array([2]), None)
    assert inputs[0, :2].tolist() == [8, 9]
    assert targets.tolist() == [[9, 10, IGNORE, IGNORE]]


def test_blocks_are_shuffled_for_training():
    batches = Batches(Blocks(tokens=torch.arange(101), length=10), batch_size=10, seed=0)
    inputs = batches.batch_at(0).inputs
    assert sorted(inputs[:, 0].tolist()) == list(range(0, 100, 10))
    assert inputs[:, 0].tolist() != list(range(0, 100, 10))


@pytest.mark.parametrize("length", [0, 11])
def test_impossible_lengths_are_refused(length):
    with pytest.raises(ValueError, match=str(length)):
        Blocks(tokens=WORDS, length=length)
