"""MNIST and Fashion-MNIST from IDX files, plain or gzipped."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bitcycle_lab.data.archive import max_unpacked_bytes, open_unpacked
from bitcycle_lab.data.base import ImageSplits, Place, dataset
from bitcycle_lab.data.images import make_splits

IMAGE_MAGIC, LABEL_MAGIC = 0x0803, 0x0801  # unsigned bytes in 3 dimensions, in 1


def read_idx(path: Path, magic: int) -> NDArray[np.uint8]:
    """The uint8 array in an IDX file; ValueError if the file holds anything else."""
    num_dimensions = magic & 0xFF
    try:
        with open_unpacked(path) as file:
            header = np.frombuffer(file.read(4 * (1 + num_dimensions)), ">u4")
            if len(header) != 1 + num_dimensions:
                raise ValueError("cut off inside the header")
            if header[0] != magic:
                raise ValueError(f"begins with 0x{header[0]:08x}, expected 0x{magic:08x}")
            shape = tuple(int(n) for n in header[1:])
            size = int(np.prod(shape, dtype=object))
            if size > max_unpacked_bytes(path):  # before the memory is allocated
                raise ValueError(f"shape {shape} in a file of {path.stat().st_size:,} bytes")
            content = file.read(size + 1)
    except (OSError, EOFError, zlib.error, MemoryError, OverflowError) as error:
        if isinstance(error, PermissionError):
            raise
        raise ValueError(f"not readable as IDX ({type(error).__name__}: {error})") from None
    if len(content) != size or size == 0:
        raise ValueError(f"{len(content):,} bytes of data where shape {shape} needs {size:,}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _read_split(place: Place, folder: Path, prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
    arrays: list[NDArray[np.uint8]] = []
    for part, magic in (("images", IMAGE_MAGIC), ("labels", LABEL_MAGIC)):
        path = place.file(folder, *_names(prefix, part))
        try:
            array = read_idx(path, magic)
            if part == "images" and array.shape[1:] != place.info.input_shape[1:]:
                raise ValueError(f"images of {array.shape[1:]}, expected 28x28")
            if part == "labels" and array.max() >= place.info.num_classes:
                raise ValueError(f"a label {array.max()}, expected 0..{place.info.num_classes - 1}")
            if part == "labels" and len(array) != len(arrays[0]):
                raise ValueError(f"{len(array)} labels for {len(arrays[0])} images")
        except ValueError as error:
            raise place.damaged(path, str(error)) from None
        arrays.append(array)
    images, labels = arrays
    return torch.from_numpy(images.copy()).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


def _names(prefix: str, part: str) -> list[str]:
    """The file names in use, plain and gzipped.

    >>> _names("t10k", "labels")[:2]
    ['t10k-labels-idx1-ubyte', 't10k-labels-idx1-ubyte.gz']
    """
    number = 3 if part == "images" else 1
    spellings = (f"{prefix}-{part}-idx{number}-ubyte", f"{prefix}-{part}.idx{number}-ubyte")
    return [name + suffix for name in spellings for suffix in ("", ".gz")]


def load_idx(place: Place, folders: tuple[str, ...]) -> ImageSplits:
    """28x28 grey images without augmentation, normalized by the training images' mean and std."""
    folder = place.folder(_names("train", "images"), below=folders)
    train, test = (_read_split(place, folder, prefix) for prefix in ("train", "t10k"))
    return make_splits(train, test, num_classes=place.info.num_classes)


_FILES = "{train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz"


@dataset(
    name="mnist",
    kind="image",
    description="70,000 28x28 handwritten digits (LeCun et al. 1998)",
    num_classes=10,
    input_shape=(1, 28, 28),
    layout=f"{_FILES}, in the root, mnist/ or MNIST/raw/",
    source="the MNIST page of Yann LeCun, or torchvision.datasets.MNIST(root, download=True)",
)
def load_mnist(place: Place) -> ImageSplits:
    """See `load_idx`."""
    return load_idx(place, ("MNIST/raw", "mnist", "MNIST", "raw"))


@dataset(
    name="fashion-mnist",
    kind="image",
    description="70,000 28x28 pictures of clothes in MNIST's layout (Xiao et al. 2017)",
    num_classes=10,
    input_shape=(1, 28, 28),
    layout=f"{_FILES}, in the root, fashion-mnist/ or FashionMNIST/raw/",
    source="https://github.com/zalandoresearch/fashion-mnist (data/fashion), or "
    "torchvision.datasets.FashionMNIST(root, download=True)",
)
def load_fashion_mnist(place: Place) -> ImageSplits:
    """See `load_idx`."""
    return load_idx(place, ("FashionMNIST/raw", "fashion-mnist", "fashion", "raw"))
