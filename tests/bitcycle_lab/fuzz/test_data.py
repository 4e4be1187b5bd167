"""Data files: read as they are, or one error that names the file, in little memory."""

from __future__ import annotations

import gzip
import pickle
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from bitcycle_lab.data import load
from bitcycle_lab.data.base import Corpus, Graph, ImageSplits, PairSplits
from tests.bitcycle_lab.data.layouts import (
    Payload,
    cifar10_parts,
    cifar100_parts,
    planetoid_parts,
    python2_pickle,
    write_binary,
    write_idx,
    write_pickled,
    write_planetoid,
    write_text,
)
from tests.bitcycle_lab.data.pair_layouts import write_snli, write_xnli
from tests.damage import Damage, damages, little_memory

NODES, FEATURES = 6, 128


def write_ogbn(folder: Path) -> Path:
    tables = {
        "raw/node-feat": "\n".join(",".join(["0.5"] * FEATURES) for _ in range(NODES)),
        "raw/node-label": "\n".join(str(n) for n in range(NODES)),
        "raw/edge": "\n".join(f"{n},{(n + 1) % NODES}" for n in range(NODES)),
        "split/time/train": "0\n1",
        "split/time/valid": "2\n3",
        "split/time/test": "4\n5",
    }
    for name, text in tables.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return folder


def write_imagenet(folder: Path) -> Path:
    for split in ("train", "val"):
        for number, name in enumerate(("cat", "dog")):
            path = folder / split / name
            path.mkdir(parents=True, exist_ok=True)
            pixels = np.full((20, 24, 3), 60 * number, np.uint8)
            Image.fromarray(pixels).save(path / "a.JPEG", "JPEG" if number else "PNG")
    return folder


LAYOUTS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "CIFAR-10, binary": ("cifar10", lambda f: write_binary(f, cifar10_parts(1))),
    "CIFAR-10, pickled": ("cifar10", lambda f: write_pickled(f, cifar10_parts(1))),
    "CIFAR-100, pickled": (
        "cifar100",
        lambda f: write_pickled(f, cifar100_parts(1), label_key="fine_labels", python2=False),
    ),
    "MNIST": ("mnist", write_idx),
    "MNIST, zipped": ("mnist", lambda f: write_idx(f, zipped=True)),
    "Cora": ("cora", lambda f: write_planetoid(f, planetoid_parts())),
    "Cora, of today": ("cora", lambda f: write_planetoid(f, planetoid_parts(), python2=False)),
    "Penn Treebank": ("ptb", write_text),
    "WikiText": ("wikitext-2", lambda f: write_text(f, "wiki.{}.tokens")),
    "SNLI": ("snli", write_snli),
    "XNLI": ("xnli", write_xnli),
    "OGBN": ("ogbn-arxiv", write_ogbn),
    "ImageNet": ("imagenet", write_imagenet),
}


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("layouts")
    for number, (_, write) in enumerate(LAYOUTS.values()):
        (folder / str(number)).mkdir()
        write(folder / str(number))
    return {name: folder / str(number) for number, name in enumerate(LAYOUTS)}


def use(loaded: Any) -> None:
    """Look at all of it: numbers are finite, labels and nodes are those there are."""
    if isinstance(loaded, ImageSplits):
        for samples in (loaded.train, loaded.test):
            images, targets = samples.fetch(np.arange(len(samples)), None)
            assert images.isfinite().all()
            assert 0 <= targets.min() <= targets.max() < loaded.num_classes
    elif isinstance(loaded, Graph):
        assert loaded.features.isfinite().all()
        num_nodes = len(loaded.features)
        assert loaded.edge_index.numel() == 0 or loaded.edge_index.max() < num_nodes
        assert 0 <= loaded.targets.min() <= loaded.targets.max() < loaded.num_classes
    elif isinstance(loaded, Corpus):
        for split in (loaded.train, loaded.validation, loaded.test):
            assert 0 <= split.min() <= split.max() < len(loaded.vocabulary)
    else:
        assert isinstance(loaded, PairSplits)
        assert loaded.train.labels.max() < len(loaded.labels)


def check(dataset: str, root: Path) -> None:
    """Load and use; an error is one of two kinds and says where."""
    before = sorted(root.rglob("*"))
    said = None
    try:
        with little_memory():
            use(load(dataset, root, cache_dir=root.parent / "cache"))
    except (ValueError, FileNotFoundError) as error:
        said = str(error)
    assert said is None or str(root) in said, said
    assert said is None or len(said) < 5_000
    assert sorted(root.rglob("*")) == before


def damaged(layouts: dict[str, Path], name: str, place: float, damage: Damage | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(shutil.copytree(layouts[name], Path(folder) / "data"))
        files = sorted(path for path in root.rglob("*") if path.is_file())
        path = files[int(place * len(files))]
        content = path.read_bytes()
        path.unlink()
        if damage is not None:
            path.write_bytes(damage.to(content))
        check(LAYOUTS[name][0], root)


accidents = (st.floats(0, 0.999), st.one_of(damages, damages, damages, st.none()))
quick = settings(max_examples=8, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYOUTS)
@given(*accidents)
@quick
def test_a_damaged_file_is_harmless_or_named(layouts, name, place, damage):
    damaged(layouts, name, place, damage)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYOUTS)
@given(*accidents)
@settings(quick, max_examples=100)
def test_that_holds_for_many_accidents(layouts, name, place, damage):
    damaged(layouts, name, place, damage)


# -- files that are made to hurt -------------------------------------------------------------------


def png_of(width: int, height: int) -> bytes:
    """A PNG that says it is this large and has next to nothing in it."""
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    )


def shared_list(times: int = 3_000) -> bytes:
    """A graph in which every node has the same list of neighbours, which is written once."""
    nodes = b"".join(b"J" + struct.pack("<i", n) + b"h\x01" for n in range(1, times))
    neighbours = b"](" + b"K\x01" * times + b"e"
    return b"\x80\x02}(K\x00" + neighbours[:1] + b"q\x01" + neighbours[1:] + nodes + b"u."


def sparse_of(shape: tuple[int, int]) -> bytes:
    import scipy.sparse

    matrix = scipy.sparse.csr_matrix(np.eye(2, 3, dtype=np.float32))
    matrix._shape = shape
    return pickle.dumps(matrix)


MADE_TO_HURT: dict[str, tuple[str, str, bytes]] = {
    "bytes of 2 GB": (
        "CIFAR-10, pickled", "test_batch", b"\x80\x03B" + struct.pack("<I", 2**31) + b"x."
    ),
    "a label beyond all integers": (
        "CIFAR-10, pickled", "test_batch",
        pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [2**80]}, protocol=2),
    ),
    "one list of neighbours for every node": ("Cora", "ind.cora.graph", shared_list()),
    "half a node": ("Cora", "ind.cora.graph", pickle.dumps({0: [1.5], 1: [0]}, 2)),
    "neighbours in neighbours": ("Cora", "ind.cora.graph", python2_pickle({0: [[1, 2], [2, 1]]})),
    "an array without contents": (
        "Cora", "ind.cora.x", b"cnumpy.core.multiarray\n_reconstruct\n(I0\ntRI5\nb."
    ),
    "a sparse matrix without contents": (
        "Cora", "ind.cora.x", b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81."
    ),
    "a sparse matrix of a billion columns": ("Cora", "ind.cora.x", sparse_of((2, 10**9))),
    "a sparse matrix of minus one row": ("Cora", "ind.cora.x", sparse_of((-1, 3))),
    "a feature that is no number": (
        "Cora", "ind.cora.x", python2_pickle(np.full((2, 3), np.nan, np.float32))
    ),
    "a test node beyond memory": ("Cora", "ind.cora.test.index", b"6\n7\n100000000000\n"),
    "images of 4 billion": (
        "MNIST", "train-images-idx3-ubyte", struct.pack(">4I", 0x803, 2**32 - 1, 28, 28)
    ),
    "images of 4 billion, zipped": (
        "MNIST, zipped", "train-images-idx3-ubyte.gz",
        gzip.compress(struct.pack(">4I", 0x803, 2**32 - 1, 28, 28)),
    ),
    "a feature of infinity": (
        "OGBN", "raw/node-feat.csv.gz", gzip.compress(b",".join([b"inf"] * FEATURES) + b"\n")
    ),
    "an edge beyond all integers": ("OGBN", "raw/edge.csv.gz", gzip.compress(b"0,1e400\n")),
    "an image of 4 billion pixels": ("ImageNet", "train/cat/a.JPEG", png_of(65_535, 65_535)),
    "an image of 120 million pixels": ("ImageNet", "val/dog/a.JPEG", png_of(12_000, 10_000)),
    "a program of PostScript": (
        "ImageNet", "train/cat/a.JPEG",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
    ),
    "a sentence without end": ("SNLI", "snli/test.tsv", b"x" * 2**20),
    "a line of tabs": ("SNLI", "snli/test.tsv", b"\t" * 2**16 + b"\n"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", MADE_TO_HURT)
def test_a_file_that_is_made_to_hurt_is_refused_by_name(layouts, what, tmp_path):
    name, file, content = MADE_TO_HURT[what]
    root = Path(shutil.copytree(layouts[name], tmp_path / "data"))
    assert (root / file).exists()
    (root / file).write_bytes(content)
    with little_memory(), pytest.raises(ValueError, match=Path(file).name.partition(".gz")[0]) as e:
        use(load(LAYOUTS[name][0], root, cache_dir=tmp_path / "cache"))
    assert len(str(e.value)) < 3_000


@pytest.mark.parametrize("name", ["CIFAR-10, pickled", "Cora"])
def test_a_pickle_that_would_run_something_runs_nothing(layouts, name, tmp_path):
    root, created = Path(shutil.copytree(layouts[name], tmp_path / "data")), tmp_path / "created"
    for path in root.rglob("*"):
        if path.is_file() and not path.name.endswith("index"):
            path.write_bytes(pickle.dumps({"data": Payload(created)}))
    with pytest.raises(ValueError, match="executed"):
        load(LAYOUTS[name][0], root)
    assert not created.exists()


def test_every_layout_loads_undamaged(layouts):
    for name, (dataset, _) in LAYOUTS.items():
        use(load(dataset, layouts[name], cache_dir=layouts[name].parent / "cache"))
