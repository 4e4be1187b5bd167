"""SNLI, XNLI and pairs of one's own: files, splits, tokens."""

import json
import os

import numpy as np
import pytest
import torch

from bitcycle_lab.data import DATASETS, EncodedPairs, PairEncoder, Place, Samples, load_pairs
from bitcycle_lab.data.pairs import (
    MIN_VOCAB,
    LabelledPair,
    read_pairs,
    read_tokenizer,
    split_targets,
    train_tokenizer,
)
from tests.bitcycle_lab.data.pair_layouts import (
    LABELS,
    some_pairs,
    write_lines,
    write_plain,
    write_released,
    write_snli,
    write_xnli,
)
from tests.forking import run_script


def triples(pairs, labels=LABELS):
    named = [labels[n] for n in pairs.labels]
    return list(zip(pairs.premises, pairs.hypotheses, named, strict=True))


@pytest.mark.parametrize("below", ["", "snli"])
def test_plain_snli(tmp_path, below):
    splits = load_pairs("snli", write_snli(tmp_path) / below)
    assert (splits.labels, splits.languages, splits.validation) == (LABELS, ("",), None)
    assert triples(splits.train) == some_pairs(24)
    assert triples(splits.test) == some_pairs(9, seed=1)


def test_snli_as_released(tmp_path):
    for seed, split in enumerate(("train", "dev", "test")):
        pairs = [*some_pairs(3, seed=seed), ("a", "b", "-")]
        write_released(tmp_path / "snli_1.0" / f"snli_1.0_{split}.txt", pairs)
    splits = load_pairs("snli", tmp_path)
    assert triples(splits.train) == some_pairs(3)
    assert triples(splits.validation) == some_pairs(3, seed=1)
    assert triples(splits.test) == some_pairs(3, seed=2)


def test_xnli_is_trained_in_english_and_tested_in_every_language(tmp_path):
    splits = load_pairs("xnli", write_xnli(tmp_path, languages=("sw", "en")))
    assert (splits.labels, splits.languages) == (LABELS, ("", "en", "sw"))
    assert triples(splits.train) == some_pairs(24)  # "contradictory" is contradiction
    assert set(splits.train.languages) == {0}
    assert splits.test.languages.tolist() == [2] * 6 + [1] * 6
    assert triples(splits.test) == some_pairs(6, seed=2) * 2
    assert len(splits.validation) == 6


def test_an_unknown_label_is_an_error_with_its_line(tmp_path):
    path = write_snli(tmp_path) / "snli" / "test.tsv"
    path.write_text(path.read_text().replace("neutral", "perhaps"), encoding="utf-8")
    with pytest.raises(ValueError, match="line 3: .*'perhaps'.*neutral"):
        load_pairs("snli", tmp_path)


def test_pairs_of_ones_own_have_the_labels_of_their_training_file(tmp_path):
    pairs = [("a", "b", "same"), ("c", "d", "other"), ("e", "f", "contradictory")]
    for name in ("train.tsv", "validation.tsv"):
        write_plain(tmp_path / name, pairs, "premise hypothesis label")
    write_plain(tmp_path / "test.tsv", pairs[:1])
    splits = load_pairs("pairs", tmp_path)
    assert splits.labels == ("contradictory", "other", "same")
    assert triples(splits.train, splits.labels) == pairs
    assert len(splits.validation) == 3
    write_plain(tmp_path / "test.tsv", [("a", "b", "new")])
    with pytest.raises(ValueError, match="test.tsv: line 2: .*'new'"):
        load_pairs("pairs", tmp_path)


def test_a_single_label_or_none_is_an_error(tmp_path):
    write_plain(tmp_path / "train.tsv", [("a", "b", "same")])
    write_plain(tmp_path / "test.tsv", [("a", "b", "same")])
    with pytest.raises(ValueError, match="'same'"):
        load_pairs("pairs", tmp_path)
    write_lines(tmp_path / "test.tsv", "premise\thypothesis\tlabel", "a\tb\t-")
    with pytest.raises(ValueError, match="test.tsv"):
        load_pairs("pairs", tmp_path)


PAIRS = some_pairs(4)


def rows_of(path):
    return list(read_pairs(Place(info=DATASETS["pairs"], root=path.parent), path))


@pytest.mark.parametrize(
    "columns", ["label premise hypothesis", "premise hypo label", "premise hypothesis label"]
)
def test_columns_are_found_by_their_names(tmp_path, columns):
    rows = rows_of(write_plain(tmp_path / "x.tsv", PAIRS, columns))
    assert [(r.premise, r.hypothesis, r.label) for r in rows] == PAIRS
    assert [r.line for r in rows] == [2, 3, 4, 5]
    assert {r.language for r in rows} == {""}


def test_a_pair_whose_annotators_disagreed_is_left_out(tmp_path):
    pairs = [PAIRS[0], ("A .", "B .", "-"), PAIRS[1]]
    rows = rows_of(write_released(tmp_path / "x.txt", pairs))
    assert [(r.premise, r.hypothesis, r.label) for r in rows] == [pairs[0], pairs[2]]
    assert [r.line for r in rows] == [2, 4]


def test_quotes_empty_sentences_and_other_separators_are_text(tmp_path):
    path = write_lines(
        tmp_path / "x.tsv", "\ufeffpremise\thypothesis\tlabel\r", '"He said\t\u2028b"\tyes\r'
    )
    assert rows_of(path) == [LabelledPair(2, '"He said', '\u2028b"', "yes", "")]
    assert rows_of(write_lines(path, "premise\thypothesis\tlabel", "\t\tyes"))[0].premise == ""


HEAD = "premise\thypothesis\tlabel"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "empty"),
        ([HEAD], "no line"),
        ([HEAD, "a\tb\tyes", "a\tb"], "line 3 has 2"),
        ([HEAD, "", "a\tb\tyes"], "line 2 has 1"),
        ([HEAD, "a\tb\tc\tyes"], "line 2 has 4"),
        (["a man\ta dog\tyes"], r"\(premise or sentence1\)"),
        (["premise\tlabel"], r"\(hypothesis or hypo or sentence2\)"),
    ],
)
def test_a_damaged_file_is_an_error_with_the_line_and_what_is_expected(tmp_path, lines, problem):
    path = write_lines(tmp_path / "x.tsv", *lines)
    with pytest.raises(ValueError, match=problem) as error:
        rows_of(path)
    assert str(path) in str(error.value)
    assert "expected: train.tsv" in str(error.value)


def test_text_that_is_not_utf8_is_an_error_with_its_line(tmp_path):
    path = write_lines(tmp_path / "x.tsv", HEAD, "a\tb\tyes")
    path.write_bytes(path.read_bytes() + b"caf\xe9\tb\tyes\n")
    with pytest.raises(ValueError, match="line 3.*byte 3"):
        rows_of(path)


pytest.importorskip("tokenizers")


@pytest.fixture
def splits(tmp_path):
    return load_pairs("xnli", write_xnli(tmp_path))


def encoder(splits, length=16):
    return PairEncoder(lambda: train_tokenizer(splits.train.premises, 300), length=length)


def test_samples_are_tokens_mask_and_sentence_and_a_target_tells_label_and_language(splits):
    samples = EncodedPairs(splits.test, encoder(splits), 3)
    assert isinstance(samples, Samples)
    inputs, targets = samples.fetch(np.array([7, 0]), None)
    assert (inputs.shape, inputs.dtype) == ((2, 3, 16), torch.int64)
    labels, languages = split_targets(targets, 3)
    assert labels.tolist() == splits.test.labels[[7, 0]].tolist()
    assert [splits.languages[n] for n in languages] == ["en", "de"]
    alone, _ = samples.fetch(np.array([0]), None)
    assert torch.equal(inputs[1], alone[0])  # a pair does not depend on its neighbours
    tokens, mask, sentence = inputs[0]
    assert mask.unique().tolist() == [0, 1] or bool(mask.all())
    assert sentence.max() == 1
    assert not tokens[mask == 0].any()  # [PAD] is 0


def test_the_tokenizer_is_made_once_and_only_when_needed(splits):
    calls = []

    def make():
        calls.append(1)
        return train_tokenizer(splits.train.premises, 300)

    encode = PairEncoder(make, length=8)
    assert calls == []
    assert encode([("a dog", "a man")]).shape == (1, 3, 8)
    assert encode.vocab_size <= 300
    assert calls == [1]
    given = PairEncoder(make, length=8)
    given.text = encode.text
    assert torch.equal(given([("a dog", "a man")]), encode([("a dog", "a man")]))
    assert calls == [1]


TEXTS = [text for pair in some_pairs(60) for text in pair[:2]]


@pytest.mark.slow
def test_equal_text_gives_an_equal_tokenizer_in_every_process(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        "from bitcycle_lab.data.pairs import train_tokenizer\n"
        f"print(train_tokenizer({TEXTS!r}, 300), end='')"
    )
    done = run_script(path, tmp_path, env={**os.environ, "PYTHONHASHSEED": "7"})
    assert done.stdout == train_tokenizer(TEXTS, 300) == train_tokenizer(iter(TEXTS), 300)
    assert done.stdout != train_tokenizer(TEXTS, 290)


def test_it_has_no_more_tokens_than_asked_for_and_can_spell_anything():
    assert read_tokenizer(train_tokenizer(TEXTS, 280), length=9).get_vocab_size() == 280
    tokenizer = read_tokenizer(train_tokenizer(TEXTS, 5000), length=40)
    assert MIN_VOCAB < tokenizer.get_vocab_size() < 400
    for text in ("the dog", "\u0e40\u0e14\u0e47\u0e01", "\u4e2d\u6587 \U0001f600"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == f" {text}"
    with pytest.raises(ValueError, match=rf"vocab_size \(100\).*{MIN_VOCAB}"):
        train_tokenizer(TEXTS, 100)


def test_a_pair_is_marked_cut_from_the_longer_side_and_padded():
    text = train_tokenizer(TEXTS, 400)
    pair = read_tokenizer(text, length=12).encode("A Dog", "the man is waiting")
    words = ["\u0120a", "\u0120dog", "\u0120the", "\u0120man", "\u0120is", "\u0120waiting"]
    assert pair.tokens == ["[CLS]", *words[:2], "[SEP]", *words[2:], "[SEP]", "[PAD]", "[PAD]",
                           "[PAD]"]  # fmt: skip
    assert pair.attention_mask == [1] * 9 + [0] * 3
    assert pair.type_ids == [0] * 4 + [1] * 5 + [0] * 3
    short = read_tokenizer(text, length=7).encode("A Dog", "the man is waiting")
    assert short.tokens == ["[CLS]", *words[:2], "[SEP]", *words[2:4], "[SEP]"]


def test_json_that_is_no_tokenizer_is_an_error():
    with pytest.raises(ValueError, match="mine.json"):
        read_tokenizer("{}", length=8, source="mine.json")
    bare = json.dumps({**json.loads(train_tokenizer(TEXTS, 300)), "padding": None})
    with pytest.raises(ValueError, match="padding"):
        read_tokenizer(bare, length=8)
