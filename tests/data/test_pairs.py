"""SNLI, XNLI and pairs of one's own."""

import shutil

import pytest

from bitcycle.data import load_pairs
from tests.data.pair_layouts import (
    LABELS,
    some_pairs,
    write_lines,
    write_plain,
    write_released,
    write_snli,
    write_xnli,
)


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


def test_xnli_may_lie_in_one_folder(tmp_path):
    root = write_xnli(tmp_path / "a")
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in root.rglob("*.tsv"):
        shutil.copy(file, flat)
    assert len(load_pairs("xnli", flat).test) == len(load_pairs("xnli", root).test) == 12


@pytest.mark.parametrize("missing", ["multinli.train.en.tsv", "xnli.dev.tsv", "xnli.test.tsv"])
def test_a_missing_file_is_named(tmp_path, missing):
    root = write_xnli(tmp_path)
    next(root.rglob(missing)).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{missing}\n(.*\n)*expected: .*\nhow to get it"):
        load_pairs("xnli", root)


def test_an_unknown_label_is_an_error_with_its_line(tmp_path):
    path = write_snli(tmp_path) / "snli" / "test.tsv"
    path.write_text(path.read_text().replace("neutral", "perhaps"), encoding="utf-8")
    with pytest.raises(ValueError, match="line 3: label 'perhaps' is none of entailment, neutral"):
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
    with pytest.raises(ValueError, match="test.tsv: line 2: label 'new' is none of contradictory"):
        load_pairs("pairs", tmp_path)


def test_a_single_label_or_none_is_an_error(tmp_path):
    write_plain(tmp_path / "train.tsv", [("a", "b", "same")])
    write_plain(tmp_path / "test.tsv", [("a", "b", "same")])
    with pytest.raises(ValueError, match="its only label is 'same'"):
        load_pairs("pairs", tmp_path)
    write_lines(tmp_path / "test.tsv", "premise\thypothesis\tlabel", "a\tb\t-")
    with pytest.raises(ValueError, match="test.tsv: none of its pairs has a label"):
        load_pairs("pairs", tmp_path)
