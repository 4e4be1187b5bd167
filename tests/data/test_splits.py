"""The containers: normalizations of a graph's features, a corpus with fewer words."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from bitcycle.data import Corpus, Graph


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
