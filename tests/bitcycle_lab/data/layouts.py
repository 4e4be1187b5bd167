"""Writes small datasets in the layouts of the real ones."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

Arrays = tuple[np.ndarray, np.ndarray]


def random_images(number: int, num_classes: int, seed: int = 0) -> Arrays:
    """CIFAR-shaped pixels (N, 3, 32, 32) and labels."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (number, 3, 32, 32), dtype=np.uint8)
    return pixels, generator.integers(0, num_classes, number)


def cifar10_parts(per_file: int = 4) -> dict[str, Arrays]:
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    return {name: random_images(per_file, 10, seed) for seed, name in enumerate(names)}


def cifar100_parts(per_file: int = 6) -> dict[str, Arrays]:
    return {name: random_images(per_file, 100, seed) for seed, name in enumerate(("train", "test"))}


def write_binary(folder: Path, parts: dict[str, Arrays], *, coarse: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (pixels, labels) in parts.items():
        columns = [labels.astype(np.uint8)[:, None], pixels.reshape(len(pixels), -1)]
        if coarse:  # CIFAR-100 has the coarse class first
            columns.insert(0, np.full((len(labels), 1), 19, np.uint8))
        (folder / f"{name}.bin").write_bytes(np.concatenate(columns, axis=1).tobytes())
    return folder


def write_pickled(
    folder: Path, parts: dict[str, Arrays], *, label_key: str = "labels", python2: bool = True
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (pixels, labels) in parts.items():
        data = pixels.reshape(len(pixels), -1)
        if python2:
            content = python2_pickle({"data": data, label_key: [int(n) for n in labels]})
        else:
            content = pickle.dumps({"data": data, label_key: labels.tolist()}, protocol=4)
        (folder / name).write_bytes(content)
    return folder


def python2_pickle(value: Any) -> bytes:
    """A protocol-2 pickle as Python 2 and numpy 1 wrote it, opcode by opcode."""
    return b"\x80\x02" + _python2(value) + b"."


def _python2(value: Any) -> bytes:
    if isinstance(value, bool | None):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, str):
        return _python2(value.encode("ascii"))
    if isinstance(value, bytes):  # a `str` of Python 2
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, list):
        return b"](" + b"".join(map(_python2, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_python2, value)) + b"t"
    if isinstance(value, defaultdict):
        items = b"".join(_python2(k) + _python2(v) for k, v in value.items())
        return b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R(" + items + b"u"
    if isinstance(value, dict):
        return b"}(" + b"".join(_python2(k) + _python2(v) for k, v in value.items()) + b"u"
    if isinstance(value, np.ndarray):
        start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        order = "|" if value.dtype.itemsize == 1 else "<"
        dtype = b"cnumpy\ndtype\n" + _python2((value.dtype.str[1:], 0, 1)) + b"R"
        dtype += _python2((3, order, None, None, None, -1, -1, 0)) + b"b"
        state = b"(" + _python2(1) + _python2(value.shape) + dtype + _python2(False)
        return (
            start
            + _python2((0,))
            + _python2(b"b")
            + b"\x87R"
            + state
            + _python2(value.tobytes())
            + b"tb"
        )
    assert isinstance(value, scipy.sparse.csr_matrix)
    state = {
        "_shape": value.shape,
        "maxprint": 50,
        "indices": value.indices,
        "indptr": value.indptr,
        "data": value.data,
    }
    return b"cscipy.sparse.csr\ncsr_matrix\n)\x81" + _python2(state) + b"b"


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, *, zipped: bool = False, numbers: tuple[int, int] = (12, 5)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, number in zip(("train", "t10k"), numbers, strict=True):
        generator = np.random.default_rng(number)
        images = generator.integers(0, 256, (number, 28, 28))
        labels = np.arange(number) % 10
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx_bytes(array)
            path = folder / f"{prefix}-{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)
    return folder


def write_text(folder: Path, file_name: str = "ptb.{}.txt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "train": " the cat sat on the <unk> \n the dog sat \n\n",
        "valid": " the dog saw the cat \n",
        "test": " a cat sat \n",
    }
    for split, text in texts.items():
        (folder / file_name.format(split)).write_text(text, encoding="utf-8")
    return folder


def planetoid_parts(*, is_isolated: bool = False) -> dict[str, Any]:
    """9 nodes, 3 features, 2 classes: 2 train, 6 known, test nodes 6..8 (7 isolated if asked)."""
    known = np.arange(18, dtype=np.float32).reshape(6, 3)
    labels = np.eye(2, dtype=np.int32)[[0, 1, 0, 1, 0, 1]]
    test = [8, 6] if is_isolated else [8, 6, 7]
    tx = np.array([[80, 0, 1], [60, 0, 1], [70, 0, 1]], np.float32)[: len(test)]
    ty = np.eye(2, dtype=np.int32)[[1, 0, 1]][: len(test)]
    graph = defaultdict(list, {0: [1, 1, 2], 1: [0], 2: [0, 2], 6: [8], 8: [6]})
    sparse = scipy.sparse.csr_matrix
    return {
        "x": sparse(known[:2]),
        "allx": sparse(known),
        "tx": sparse(tx),
        "y": labels[:2],
        "ally": labels,
        "ty": ty,
        "graph": graph,
        "test.index": "".join(f"{node}\n" for node in test),
    }


def write_planetoid(
    folder: Path, parts: dict[str, Any], *, name: str = "cora", python2: bool = True
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, value in parts.items():
        path = folder / f"ind.{name}.{part}"
        if part == "test.index":
            path.write_text(value)
        else:
            path.write_bytes(python2_pickle(value) if python2 else pickle.dumps(value))
    return folder


class Payload:
    """Unpickled in the ordinary way, this creates the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")
