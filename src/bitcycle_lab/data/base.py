"""The registry of datasets, what a loader returns, and errors for missing or damaged files.

Adding a dataset is one file in this folder:

    @dataset(name="mine", kind="image", num_classes=2, input_shape=(3, 32, 32), description=...,
             layout="mine.bin: ...", source="the project page of mine")
    def load_mine(place: Place) -> ImageSplits: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitcycle.registry import Registry
from bitcycle_lab.data.batches import Samples

END_OF_LINE = "<eos>"
UNKNOWN = "<unk>"
MARKS = (END_OF_LINE, UNKNOWN)
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
MAX_PROBLEM = 500  # characters in an error message: a reason may quote the file


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSplits:
    """Labelled images for training and test; `validation` if the dataset has that split."""

    train: Samples
    test: Samples
    num_classes: int
    validation: Samples | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """A text in three splits of word indices (1-D int32), and its vocabulary."""

    train: Tensor
    validation: Tensor
    test: Tensor
    vocabulary: tuple[str, ...]
    """Most frequent first."""

    def with_most_frequent(self, count: int) -> Corpus:
        """Keep the `count` most frequent words, counting the marks; the others become `<unk>`."""
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
        """Divide each node's features by their sum, as the GCN paper does; empty rows stay 0."""
        sums = self.features.sum(dim=1, keepdim=True)
        return replace(self, features=self.features / torch.where(sums == 0, 1.0, sums))

    def with_standardized_features(self) -> Graph:
        """Scale each feature to mean 0 and standard deviation 1; constant features become 0."""
        centred = self.features - self.features.mean(dim=0)
        deviation = centred.square().mean(dim=0).sqrt()
        return replace(self, features=centred / torch.where(deviation == 0, 1.0, deviation))


@dataclass(frozen=True, kw_only=True, eq=False)
class SentencePairs:
    """Pairs of sentences with the indices of their labels and languages."""

    premises: tuple[str, ...]
    hypotheses: tuple[str, ...]
    labels: NDArray[np.int64]
    languages: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class PairSplits:
    """Sentence pairs for training and test, and the names of labels and languages.

    languages: the first is "", for files without a language column.
    """

    train: SentencePairs
    test: SentencePairs
    validation: SentencePairs | None
    labels: tuple[str, ...]
    languages: tuple[str, ...]


Kind = Literal["image", "language", "graph", "pair"]
Loaded = ImageSplits | Corpus | Graph | PairSplits
Loader = Callable[["Place"], Loaded]
L = TypeVar("L", bound=Loader)
D = TypeVar("D", ImageSplits, Corpus, Graph, PairSplits)


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What the registry knows about a dataset."""

    name: str
    kind: Kind
    description: str
    num_classes: int
    """Classes of an image, a node or a pair; for language the size of the vocabulary."""
    input_shape: tuple[int, ...]
    """(channels, height, width) of an image; (num_features,) of a node; () for text."""
    layout: str
    """The files below the root."""
    source: str
    """Where to get the files."""
    load: Loader
    needs_root: bool = True


DATASETS: Registry[DatasetInfo] = Registry("dataset", "bitcycle_lab.data")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a loader looks for its files, and the errors for missing and damaged ones."""

    info: DatasetInfo
    root: Path
    cache_dir: Path | None = None
    """For vocabularies; None: the user's cache folder."""
    num_workers: int = 2
    """Threads that decode image files."""

    def folder(self, marks: Sequence[str], *, below: Iterable[str]) -> Path:
        """The first of root/<below> and root that contains one of `marks`."""
        looked = [*(self.root / name for name in below), self.root]
        for folder in looked:
            if any((folder / mark).exists() for mark in marks):
                return folder
        raise self.missing([folder / marks[0] for folder in looked])

    def file(self, folder: Path, *names: str) -> Path:
        """The first of these names that is a file in `folder`."""
        for name in names:
            if (folder / name).is_file():
                return folder / name
        raise self.missing([folder / name for name in names])

    def missing(self, looked: Iterable[Path]) -> FileNotFoundError:
        """The error for missing files: the paths it looked for, and where to get them."""
        paths = "\n".join(f"  {path}" for path in looked)
        archives = [path for ending in ARCHIVES for path in sorted(self.root.glob(f"*{ending}"))]
        hint = "".join(f"\nstill packed: {path}" for path in archives[:3])
        return FileNotFoundError(
            f"{self.info.name}: not found; looked for\n{paths}\n{self._help}{hint}"
        )

    def damaged(self, path: Path, problem: str) -> ValueError:
        """The error for a file with unexpected content."""
        short = problem if len(problem) <= MAX_PROBLEM else f"{problem[:MAX_PROBLEM]}..."
        return ValueError(f"{self.info.name}: {path}: {short}\n{self._help}")

    @property
    def _help(self) -> str:
        return f"expected: {self.info.layout}\nhow to get it: {self.info.source}"


def dataset(
    *,
    name: str,
    kind: Kind,
    description: str,
    num_classes: int,
    input_shape: tuple[int, ...],
    layout: str,
    source: str,
    needs_root: bool = True,
) -> Callable[[L], L]:
    """Register a loader function as a dataset."""

    def register(load: L) -> L:
        DATASETS.register(name)(
            DatasetInfo(
                name=name,
                kind=kind,
                description=description,
                num_classes=num_classes,
                input_shape=input_shape,
                layout=layout,
                source=source,
                load=load,
                needs_root=needs_root,
            )
        )
        return load

    return register


def load(
    name: str,
    root: str | Path | None = None,
    *,
    cache_dir: str | Path | None = None,
    num_workers: int = 2,
) -> Loaded:
    """Load a dataset from the folder `root`.

    Missing files raise FileNotFoundError, damaged ones ValueError. Both name the path, the
    expected files and where to get them.

    >>> load("digits").num_classes
    10
    """
    info = DATASETS[name]
    if root is None and info.needs_root:
        raise ValueError(
            f"dataset {name!r} needs its folder: set root (--data.root)\n"
            f"expected: {info.layout}\nhow to get it: {info.source}"
        )
    if num_workers < 1:
        raise ValueError(f"num_workers ({num_workers}) must be at least 1")
    folder = Path(root).expanduser() if root is not None else Path()
    cache = Path(cache_dir).expanduser() if cache_dir is not None else None
    place = Place(info=info, root=folder, cache_dir=cache, num_workers=num_workers)
    if info.needs_root and not folder.is_dir():
        raise place.missing([folder])
    return info.load(place)


def load_images(name: str, root: str | Path | None = None, *, num_workers: int = 2) -> ImageSplits:
    """Load a dataset of images."""
    return _load_as(ImageSplits, "image", name, root, num_workers=num_workers)


def load_corpus(
    name: str, root: str | Path | None = None, *, cache_dir: str | Path | None = None
) -> Corpus:
    """Load a text."""
    return _load_as(Corpus, "language", name, root, cache_dir=cache_dir)


def load_graph(name: str, root: str | Path | None = None) -> Graph:
    """Load a graph."""
    return _load_as(Graph, "graph", name, root)


def load_pairs(name: str, root: str | Path | None = None) -> PairSplits:
    """Load pairs of sentences."""
    return _load_as(PairSplits, "pair", name, root)


def _load_as(splits: type[D], kind: Kind, name: str, root: str | Path | None, **options: Any) -> D:
    """`load`, or a ValueError if the dataset is of another kind."""
    if DATASETS[name].kind != kind:
        known = ", ".join(n for n, info in DATASETS.items() if info.kind == kind)
        raise ValueError(
            f"dataset {name!r} is of kind {DATASETS[name].kind!r}; of kind {kind!r} are: {known}"
        )
    loaded = load(name, root, **options)
    assert isinstance(loaded, splits)
    return loaded
