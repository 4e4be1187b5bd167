"""ImageNet as folders of JPEG files, decoded by Pillow in worker threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitcycle.data.base import Place, dataset
from bitcycle.data.batch import Key
from bitcycle.data.decode import decode_centre, decode_random, read_header
from bitcycle.data.images import normalize
from bitcycle.data.splits import ImageSplits
from bitcycle.extras import require

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SUFFIXES = (".jpeg", ".jpg", ".png")
BATCHES_AHEAD = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """Image files and their classes; a fetch decodes in `num_workers` threads, order kept.

    With a key: random-resized crop and flip, keyed by the file's index. Without: the short side
    scaled to 256/224 of `size`, then the centre.
    """

    paths: Sequence[Path]
    targets: Tensor
    size: int = 224
    num_workers: int = 2
    device: torch.device | str = "cpu"
    num_prefetch: int = BATCHES_AHEAD
    _pool: ThreadPoolExecutor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="bitcycle-decode")
        object.__setattr__(self, "_pool", pool)

    def __len__(self) -> int:
        return len(self.paths)

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Normalized float32 images (N, 3, size, size) and their classes."""
        images = np.stack(list(self._pool.map(partial(self._decode, key=key), indices)))
        pixels = torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2).contiguous()
        targets = self.targets[torch.from_numpy(indices.copy())].to(self.device)
        return normalize(pixels, mean=MEAN, std=STD), targets

    def to(self, device: torch.device | str) -> ImageFiles:
        """The same files, with decoded images delivered to `device`."""
        return replace(self, device=device)

    def _decode(self, index: np.int64, key: Key | None) -> NDArray[np.uint8]:
        path = self.paths[int(index)]
        if key is None:
            return decode_centre(path, self.size)
        return decode_random(path, self.size, key, int(index))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_pool"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()


@dataset(
    name="imagenet",
    kind="image",
    description="ILSVRC 2012, 1.28 million photographs of 1,000 things (any folders of classes do)",
    num_classes=1000,
    input_shape=(3, 224, 224),
    layout="train/<class>/*.JPEG and val/<class>/*.JPEG, the same classes in both",
    source="https://www.image-net.org (registration), ILSVRC2012 train and val archives; the "
    "validation images moved into folders of their classes",
)
def load_imagenet(place: Place) -> ImageSplits:
    """Lists all files, and reads one image header per class; a file is decoded when it is used."""
    require("PIL", extra="train", purpose="image files")
    root = place.root
    if not (root / "train").is_dir() and (root / "imagenet" / "train").is_dir():
        root = root / "imagenet"
    classes = {split: _class_names(place, root / split) for split in ("train", "val")}
    if classes["train"] != classes["val"]:
        odd = sorted(set(classes["train"]) ^ set(classes["val"]))
        raise place.damaged(root, f"train and val have different classes: {', '.join(odd[:5])}")
    files = {split: _list_files(place, root / split, classes[split]) for split in classes}
    return ImageSplits(train=files["train"], test=files["val"], num_classes=len(classes["train"]))


def _class_names(place: Place, folder: Path) -> list[str]:
    if not folder.is_dir():
        raise place.missing([folder])
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if not names:
        raise place.missing([folder / "<class>"])
    return names


def _list_files(place: Place, folder: Path, classes: list[str]) -> ImageFiles:
    paths: list[Path] = []
    targets: list[int] = []
    for number, name in enumerate(classes):
        inside = (folder / name).iterdir()
        found = sorted(path for path in inside if path.suffix.lower() in SUFFIXES)
        if not found:
            raise place.missing([folder / name / "*.JPEG"])
        try:
            read_header(found[0])
        except ValueError as error:
            raise place.damaged(found[0], str(error)) from None
        paths += found
        targets += [number] * len(found)
    return ImageFiles(
        paths=paths,
        targets=torch.tensor(targets, dtype=torch.int64),
        size=place.info.input_shape[1],
        num_workers=place.num_workers,
    )
