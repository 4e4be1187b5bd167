"""What a loaded dataset is: image splits, a text corpus, a graph, or pairs of sentences."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitcycle.data.batch import Samples

END_OF_LINE = "<eos>"
UNKNOWN = "<unk>"
MARKS = (END_OF_LINE, UNKNOWN)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSplits:
    """Labelled images for training and for the final test; `validation` where the data has one."""

    train: Samples
    test: Samples
    num_classes: int
    validation: Samples | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A text as word numbers (1-D int32), three splits, and the word behind each number."""

    train: Tensor
    validation: Tensor
    test: Tensor
    vocabulary: tuple[str, ...]
    """Most frequent first."""

    def with_most_frequent(self, count: int) -> Corpus:
        """Only `count` words, the marks among them; the others become `<unk>`."""
        if count >= len(self.vocabulary):
            return self
        others = [word for word in self.vocabulary if word not in MARKS]
        dropped = {*others[count - (len(self.vocabulary) - len(others)) :]}
        words = tuple(word for word in self.vocabulary if word not in dropped)
        numbers = {word: number for number, word in enumerate(words)}
        unknown = numbers[UNKNOWN]
        new = torch.tensor(
            [numbers.get(word, unknown) for word in self.vocabulary], dtype=torch.int32
        )
        train, validation, test = (new[x.long()] for x in (self.train, self.validation, self.test))
        return Corpus(train=train, validation=validation, test=test, vocabulary=words)


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """Nodes with features and classes, edges in both directions, and masks for the splits."""

    features: Tensor
    """(num_nodes, num_features) float32"""
    edge_index: Tensor
    """(2, num_edges) int64: source, target; no duplicates, no self-loops"""
    targets: Tensor
    """(num_nodes,) int64"""
    train_mask: Tensor
    validation_mask: Tensor
    test_mask: Tensor
    num_classes: int

    def to(self, device: torch.device | str) -> Graph:
        """The same graph on `device`."""
        names = ("features", "edge_index", "targets", "train_mask", "validation_mask", "test_mask")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def with_row_normalized_features(self) -> Graph:
        """Each node's features divided by their sum, as the GCN paper does; empty rows stay 0."""
        sums = self.features.sum(dim=1, keepdim=True)
        return replace(self, features=self.features / torch.where(sums == 0, 1.0, sums))

    def with_standardized_features(self) -> Graph:
        """Each feature with mean 0 and standard deviation 1 over the nodes; constant ones are 0."""
        centred = self.features - self.features.mean(dim=0)
        deviation = centred.square().mean(dim=0).sqrt()
        return replace(self, features=centred / torch.where(deviation == 0, 1.0, deviation))


@dataclass(frozen=True, kw_only=True, eq=False)
class SentencePairs:
    """Pairs of sentences, each with the number of its label and of its language."""

    premises: tuple[str, ...]
    hypotheses: tuple[str, ...]
    labels: NDArray[np.int64]
    languages: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class PairSplits:
    """Pairs for training and for the final test, and the names behind the numbers.

    languages: the first is "", that of files which name none.
    """

    train: SentencePairs
    test: SentencePairs
    validation: SentencePairs | None
    labels: tuple[str, ...]
    languages: tuple[str, ...]


def both_directions(
    sources: NDArray[np.int64], targets: NDArray[np.int64], num_nodes: int
) -> NDArray[np.int64]:
    """Each edge in both directions, sorted, without duplicates and self-loops: (2, num_edges).

    >>> both_directions(np.array([0, 1, 2, 0]), np.array([1, 0, 2, 2]), 3).tolist()
    [[0, 0, 1, 2], [1, 2, 0, 0]]
    """
    keep = sources != targets
    sources, targets = sources[keep], targets[keep]
    pairs = np.concatenate([sources * num_nodes + targets, targets * num_nodes + sources])
    unique = np.unique(pairs)
    return np.stack([unique // num_nodes, unique % num_nodes])
