"""The registry of datasets: what each one is, where it is looked for, what to do when it is absent.

Adding a dataset is one file in this folder:

    @dataset(name="mine", kind="image", num_classes=2, input_shape=(3, 32, 32), description=...,
             layout="mine.bin: ...", source="the project page of mine")
    def load_mine(place: Place) -> ImageSplits: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from bitcycle.data.splits import Corpus, Graph, ImageSplits, PairSplits
from bitcycle.registry import Registry

Kind = Literal["image", "language", "graph", "pair"]
Loaded = ImageSplits | Corpus | Graph | PairSplits
Loader = Callable[["Place"], Loaded]
L = TypeVar("L", bound=Loader)
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
MOST_SHOWN = 500  # characters of what is wrong with a file: it may quote the file


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """One entry of the registry."""

    name: str
    kind: Kind
    description: str
    num_classes: int
    """Classes of an image, a node or a pair; words of the vocabulary for language."""
    input_shape: tuple[int, ...]
    """Of one sample, (channels, height, width); (num_features,) of a node; () for text."""
    layout: str
    """The files, as they are expected below the root."""
    source: str
    """Where a user gets them."""
    load: Loader
    needs_root: bool = True


DATASETS: Registry[DatasetInfo] = Registry("dataset", "bitcycle.data")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a dataset should be, and the errors when what is there is not what was expected."""

    info: DatasetInfo
    root: Path
    cache_dir: Path | None = None
    """For what is computed once (vocabularies); None: the user's cache folder."""
    num_workers: int = 2
    """Threads that decode images, where images are decoded."""

    def folder(self, marks: Sequence[str], *, below: Iterable[str]) -> Path:
        """The first of root/<below> and root that holds any of the files `marks`."""
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
        """The error for files that are not there: where they were looked for, how to get them."""
        paths = "\n".join(f"  {path}" for path in looked)
        archives = [path for ending in ARCHIVES for path in sorted(self.root.glob(f"*{ending}"))]
        hint = "".join(f"\nstill packed: {path}" for path in archives[:3])
        return FileNotFoundError(
            f"{self.info.name}: not found; looked for\n{paths}\n{self._help}{hint}"
        )

    def damaged(self, path: Path, problem: str) -> ValueError:
        """The error for a file that is there and is not what it should be."""
        short = problem if len(problem) <= MOST_SHOWN else f"{problem[:MOST_SHOWN]}..."
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
    """A decorator that enters a loader function into the registry."""

    def enter(load: L) -> L:
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

    return enter


def load(
    name: str,
    root: str | Path | None = None,
    *,
    cache_dir: str | Path | None = None,
    num_workers: int = 2,
) -> Loaded:
    """Read a dataset from the folder `root`, completely or not at all.

    Missing files raise FileNotFoundError, damaged ones ValueError; both name the path, what was
    expected there and where to get it.

    >>> load("digits").num_classes
    10
    """
    info = DATASETS[name]
    if root is None and info.needs_root:
        raise ValueError(
            f"dataset {name!r} is read from a folder: give its root (--data.root)\n"
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
    """`load` for a dataset of images; another kind is an error."""
    _check_kind(name, "image")
    loaded = load(name, root, num_workers=num_workers)
    assert isinstance(loaded, ImageSplits)
    return loaded


def load_corpus(
    name: str, root: str | Path | None = None, *, cache_dir: str | Path | None = None
) -> Corpus:
    """`load` for a text; another kind is an error."""
    _check_kind(name, "language")
    loaded = load(name, root, cache_dir=cache_dir)
    assert isinstance(loaded, Corpus)
    return loaded


def load_graph(name: str, root: str | Path | None = None) -> Graph:
    """`load` for a graph; another kind is an error."""
    _check_kind(name, "graph")
    loaded = load(name, root)
    assert isinstance(loaded, Graph)
    return loaded


def load_pairs(name: str, root: str | Path | None = None) -> PairSplits:
    """`load` for pairs of sentences; another kind is an error."""
    _check_kind(name, "pair")
    loaded = load(name, root)
    assert isinstance(loaded, PairSplits)
    return loaded


def _check_kind(name: str, kind: Kind) -> None:
    if DATASETS[name].kind != kind:
        known = ", ".join(n for n, info in DATASETS.items() if info.kind == kind)
        raise ValueError(
            f"dataset {name!r} is of kind {DATASETS[name].kind!r}; of kind {kind!r} are: {known}"
        )
