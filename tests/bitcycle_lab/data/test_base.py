"""The registry of datasets, the splits, and errors for missing and damaged files."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from bitcycle_lab.data import (
    DATASETS,
    Corpus,
    Graph,
    load,
    load_corpus,
    load_graph,
    load_images,
)

from .layouts import write_text


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="'cifar-10'.*did you mean 'cifar10'"):
        load("cifar-10")


@pytest.mark.parametrize(
    ("loader", "name", "known"),
    [(load_images, "ptb", "cifar10"), (load_graph, "ptb", "cora"), (load_corpus, "digits", "ptb")],
)
def test_the_wrong_kind_is_answered_with_the_right_names(loader, name, known):
    with pytest.raises(ValueError, match=f"'{name}'.*{known}"):
        loader(name, ".")


def test_a_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_text(tmp_path / "texts")
    assert load_corpus("ptb", "~/texts", cache_dir="~/cache").vocabulary
    assert list((tmp_path / "cache").iterdir())


def test_an_archive_that_is_still_packed_is_pointed_out(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").touch()
    with pytest.raises(FileNotFoundError, match=r"cifar-10-python\.tar\.gz"):
        load("cifar10", tmp_path)


def test_the_number_of_workers_is_checked():
    with pytest.raises(ValueError, match=r"num_workers \(0\)"):
        load("digits", num_workers=0)


def test_every_dataset_says_what_it_is():
    for name, info in DATASETS.items():
        assert info.name == name
        assert info.num_classes > 1
        sizes = {"image": 3, "language": 0, "graph": 1, "pair": 0}
        assert len(info.input_shape) == sizes[info.kind]


@pytest.mark.parametrize("name", [n for n, info in DATASETS.items() if info.needs_root])
def test_every_dataset_says_how_to_get_it_when_there_is_no_root(name, tmp_path):
    info = DATASETS[name]
    with pytest.raises(ValueError, match="root") as no_root:
        load(name)
    absent, empty = tmp_path / "absent", tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError) as no_folder:
        load(name, absent)
    with pytest.raises(FileNotFoundError) as no_files:
        load(name, empty)
    assert str(absent) in str(no_folder.value)
    assert str(empty) in str(no_files.value)
    for error in (no_root, no_folder, no_files):
        assert name in str(error.value)
        assert info.layout in str(error.value)
        assert info.source in str(error.value)


def graph() -> Graph:
    mask = torch.tensor([True, False, False])
    return Graph(
        features=torch.tensor([[1.0, 3.0, 5.0], [0.0, 0.0, 5.0], [2.0, 6.0, 5.0]]),
        edge_index=torch.tensor([[0, 1], [1, 0]]),
        targets=torch.tensor([0, 1, 0]),
        train_mask=mask,
        validation_mask=mask.roll(1),
        test_mask=mask.roll(2),
        num_classes=2,
    )


def test_rows_are_divided_by_their_sum_and_empty_rows_stay_empty():
    features = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    one = Graph(**{**vars(graph()), "features": features}).with_row_normalized_features()
    assert one.features.tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_standardized_features_have_mean_0_and_std_1_and_constant_ones_are_0():
    features = graph().with_standardized_features().features
    assert torch.allclose(features.mean(dim=0), torch.zeros(3), atol=1e-6)
    assert torch.allclose(features.std(dim=0, correction=0)[:2], torch.ones(2), atol=1e-6)
    assert features[:, 2].tolist() == [0.0, 0.0, 0.0]


def _text(corpus: Corpus, split: str) -> str:
    return " ".join(corpus.vocabulary[number] for number in getattr(corpus, split))


def _corpus(*words: str) -> Corpus:
    numbers = torch.arange(len(words), dtype=torch.int32)
    return Corpus(train=numbers, validation=numbers[:3], test=numbers[3:], vocabulary=words)


def test_rare_words_become_unknown():
    corpus = _corpus("the", "<unk>", "a", "<eos>", "cat", "dog").with_most_frequent(4)
    assert corpus.vocabulary == ("the", "<unk>", "a", "<eos>")
    assert _text(corpus, "train") == "the <unk> a <eos> <unk> <unk>"
    assert _text(corpus, "validation") == "the <unk> a"
    assert _text(corpus, "test") == "<eos> <unk> <unk>"
    assert corpus.train.dtype == torch.int32


@pytest.mark.parametrize("count", [3, 4])
def test_both_marks_and_the_most_frequent_words_are_kept_in_any_order(count):
    for words in permutations(["the", "a", "cat", "<eos>", "<unk>"]):
        kept = _corpus(*words).with_most_frequent(count).vocabulary
        plain = [word for word in words if word[0] != "<"][: count - 2]
        assert kept == tuple(word for word in words if word[0] == "<" or word in plain)


@pytest.mark.parametrize("count", [4, 9])
def test_as_many_words_as_there_are_or_more_change_nothing(count):
    corpus = _corpus("<eos>", "<unk>", "a", "b")
    assert corpus.with_most_frequent(count) is corpus
