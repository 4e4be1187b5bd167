"""CIFAR-10 and CIFAR-100 from the files of the official binary or Python archives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bitcycle_lab.data.archive import as_array, read_dict
from bitcycle_lab.data.base import ImageSplits, Place, dataset
from bitcycle_lab.data.images import make_splits

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]
IMAGE_BYTES = 3 * 32 * 32
PADDING = 4


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What differs between CIFAR-10 and CIFAR-100."""

    num_classes: int
    binary_folder: str
    pickled_folder: str
    train_files: tuple[str, ...]
    test_file: str
    label_key: str
    label_bytes: int
    """Bytes before the pixels of a binary record; the last of them is the (fine) class."""
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None
    """Mean and std per channel; None: computed from the training images when they are loaded."""


CIFAR10 = Variant(
    num_classes=10,
    binary_folder="cifar-10-batches-bin",
    pickled_folder="cifar-10-batches-py",
    train_files=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test_file="test_batch",
    label_key="labels",
    label_bytes=1,
    statistics=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
)
CIFAR100 = Variant(
    num_classes=100,
    binary_folder="cifar-100-binary",
    pickled_folder="cifar-100-python",
    train_files=("train",),
    test_file="test",
    label_key="fine_labels",
    label_bytes=2,
    statistics=None,
)


def load_cifar(place: Place, variant: Variant) -> ImageSplits:
    """Load the images; training pads them by 4 pixels, crops and flips."""
    first = variant.train_files[0]
    folder = place.folder(
        [f"{first}.bin", first], below=[variant.binary_folder, variant.pickled_folder]
    )
    suffix = ".bin" if (folder / f"{first}.bin").exists() else ""
    read = _read_binary if suffix else _read_pickled
    paths = [
        place.file(folder, name + suffix) for name in (*variant.train_files, variant.test_file)
    ]
    *train_parts, (test_pixels, test_labels) = (read(place, path, variant) for path in paths)
    train_pixels = np.concatenate([pixels for pixels, _ in train_parts])
    train_labels = np.concatenate([labels for _, labels in train_parts])
    return make_splits(
        (torch.from_numpy(train_pixels), torch.from_numpy(train_labels)),
        (torch.from_numpy(test_pixels), torch.from_numpy(test_labels)),
        num_classes=variant.num_classes,
        statistics=variant.statistics,
        padding=PADDING,
        flip=True,
    )


def _read_binary(place: Place, path: Path, variant: Variant) -> Arrays:
    content = np.fromfile(path, np.uint8)
    record_bytes = variant.label_bytes + IMAGE_BYTES
    if len(content) == 0 or len(content) % record_bytes:
        raise place.damaged(
            path, f"{len(content):,} bytes are not a whole number of {record_bytes}-byte records"
        )
    records = content.reshape(-1, record_bytes)
    labels = records[:, variant.label_bytes - 1].astype(np.int64)
    pixels = records[:, variant.label_bytes :].reshape(-1, 3, 32, 32)
    return _checked(place, path, variant, pixels, labels)


def _read_pickled(place: Place, path: Path, variant: Variant) -> Arrays:
    try:
        content = read_dict(path)
        absent = {"data", variant.label_key} - content.keys()
        if absent:
            raise ValueError(f"no entry {sorted(absent)[0]!r}; it has {sorted(content)}")
        pixels = as_array(content["data"])
        labels = content[variant.label_key]
        if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != IMAGE_BYTES:
            raise ValueError(
                f"images of shape {pixels.shape} in {pixels.dtype}, "
                f"expected (N, {IMAGE_BYTES}) in uint8"
            )
        if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
            raise ValueError(f"{variant.label_key} is not a list of integers")
        numbers = np.array(labels, np.int64)
    except (ValueError, OverflowError) as error:
        raise place.damaged(path, str(error)) from None
    return _checked(place, path, variant, pixels.reshape(-1, 3, 32, 32), numbers)


def _checked(
    place: Place,
    path: Path,
    variant: Variant,
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
) -> Arrays:
    if len(labels) != len(pixels) or len(labels) == 0:
        raise place.damaged(path, f"{len(pixels)} images with {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= variant.num_classes:
        raise place.damaged(
            path, f"labels {labels.min()}..{labels.max()}, expected 0..{variant.num_classes - 1}"
        )
    return np.array(pixels), labels  # a contiguous, writable copy


_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"

dataset(
    name="cifar10",
    kind="image",
    description="60,000 32x32 colour photographs of 10 things (Krizhevsky 2009)",
    num_classes=10,
    input_shape=(3, 32, 32),
    layout="cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin or "
    "cifar-10-batches-py/{data_batch_1..5,test_batch}, or one of these folders as the root",
    source=f"{_PAGE}: cifar-10-binary.tar.gz or cifar-10-python.tar.gz, "
    "unpacked below the root (tar -xzf)",
)(partial(load_cifar, variant=CIFAR10))

dataset(
    name="cifar100",
    kind="image",
    description="60,000 32x32 colour photographs of 100 things (Krizhevsky 2009); normalized by "
    "its own training images' mean and std",
    num_classes=100,
    input_shape=(3, 32, 32),
    layout="cifar-100-binary/{train,test}.bin or cifar-100-python/{train,test}, "
    "or one of these folders as the root",
    source=f"{_PAGE}: cifar-100-binary.tar.gz or cifar-100-python.tar.gz, "
    "unpacked below the root (tar -xzf)",
)(partial(load_cifar, variant=CIFAR100))
