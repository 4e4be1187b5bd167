"""PTB and WikiText files to word numbers."""

from __future__ import annotations

import pytest
import torch

from bitcycle.data import load_corpus

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


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty"),
        (b"\n\n\n", "no words"),
        (b"abc \xff\xfe def\n", "not UTF-8"),
    ],
)
def test_a_damaged_text_is_named_with_the_problem(tmp_path, split, content, problem):
    write_text(tmp_path)
    (tmp_path / f"ptb.{split}.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"(?s)ptb\.{split}\.txt: .*{problem}.*how to get it"):
        load_corpus("ptb", tmp_path, cache_dir=tmp_path / "cache")


def test_a_missing_split_is_named(tmp_path):
    write_text(tmp_path, WIKI)
    (tmp_path / "wiki.valid.tokens").unlink()
    with pytest.raises(FileNotFoundError, match=r"wiki\.valid\.tokens"):
        load_corpus("wikitext-2", tmp_path, cache_dir=tmp_path / "cache")
