"""ImageNet from folders of JPEG files, decoded by Pillow in worker threads."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitcycle.extras import require
from bitcycle_lab.data.base import ImageSplits, Place, dataset
from bitcycle_lab.data.batches import Key, upload
from bitcycle_lab.data.counter import Purpose, draw_bits, integers, uniforms
from bitcycle_lab.data.images import normalize

if TYPE_CHECKING:
    from PIL.Image import Image

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SUFFIXES = (".jpeg", ".jpg", ".png")
FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # not EPS: Pillow would start Ghostscript
BATCHES_AHEAD = 2
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
NUM_TRIALS = 10
BILINEAR = 2  # PIL.Image.Resampling.BILINEAR


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
    """List all files and read one image header per class; files are decoded when fetched."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """Image files and their classes, decoded in `num_workers` threads.

    In training, `decode_random` crops and flips by the file's index; in evaluation,
    `decode_centre` takes the centre.
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
        pixels = upload(torch.from_numpy(images), self.device).permute(0, 3, 1, 2).contiguous()
        targets = upload(self.targets[torch.from_numpy(indices.copy())], self.device)
        return normalize(pixels, mean=MEAN, std=STD), targets

    def to(self, device: torch.device | str) -> ImageFiles:
        """The same files, fetched onto `device`."""
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


def decode_random(path: Path, size: int, key: Key, index: int) -> NDArray[np.uint8]:
    """A random-resized crop (size, size, 3), flipped with p = 1/2."""
    image = _open(path)
    full_width, full_height = image.size
    left, top, width, height = draw_window(full_width, full_height, key, index)
    resized = image.crop((left, top, left + width, top + height)).resize((size, size), BILINEAR)
    pixels: NDArray[np.uint8] = np.asarray(resized)
    counter = np.array([index], np.int64)
    if integers(draw_bits(key.seed, Purpose.FLIP, key.epoch, counter), 2)[0]:
        pixels = pixels[:, ::-1]
    return pixels


def decode_centre(path: Path, size: int) -> NDArray[np.uint8]:
    """Resize the short side to size * 256/224, then crop the centre: (size, size, 3)."""
    image = _open(path)
    width, height = image.size
    short = round(size * 256 / 224)
    if width <= height:
        new_size = (short, max(short, int(short * height / width)))
    else:
        new_size = (max(short, int(short * width / height)), short)
    left, top = round((new_size[0] - size) / 2), round((new_size[1] - size) / 2)
    resized = image.resize(new_size, BILINEAR).crop((left, top, left + size, top + size))
    pixels: NDArray[np.uint8] = np.asarray(resized)
    return pixels


class Window(NamedTuple):
    """A rectangle of an image, in pixels."""

    left: int
    top: int
    width: int
    height: int


def draw_window(width: int, height: int, key: Key, index: int) -> Window:
    """Random-resized crop (Inception): 8-100 % of the area, aspect ratio 3/4..4/3, log-uniform.

    A rectangle that does not fit is drawn again, up to ten times; after that, the crop is the
    largest allowed centre.
    """
    counter = np.array([index], np.int64)

    def draw(purpose: Purpose, trial: int) -> NDArray[np.uint64]:
        return draw_bits(key.seed, purpose, key.epoch, counter, trial)

    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for trial in range(NUM_TRIALS):
        fraction = AREA[0] + (AREA[1] - AREA[0]) * float(
            uniforms(draw(Purpose.CROP_AREA, trial))[0]
        )
        ratio = math.exp(low + (high - low) * float(uniforms(draw(Purpose.CROP_RATIO, trial))[0]))
        w = round(math.sqrt(width * height * fraction * ratio))
        h = round(math.sqrt(width * height * fraction / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = int(integers(draw(Purpose.CROP_X, trial), width - w + 1)[0])
            top = int(integers(draw(Purpose.CROP_Y, trial), height - h + 1)[0])
            return Window(left, top, w, h)
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    return Window((width - w) // 2, (height - h) // 2, w, h)


def read_header(path: Path) -> tuple[int, int]:
    """Width and height of an image file without decoding it; ValueError if it is not an image."""
    pillow = require("PIL.Image", extra="train", purpose="image files")
    try:
        with pillow.open(path, formats=FORMATS) as image:
            width, height = image.size
    except PermissionError:
        raise
    except Exception as error:  # Pillow raises many types for damaged files
        raise ValueError(f"not an image ({type(error).__name__}: {error})") from None
    return int(width), int(height)


def _open(path: Path) -> Image:
    pillow = require("PIL.Image", extra="train", purpose="image files")
    try:
        with pillow.open(path, formats=FORMATS) as image:
            if image.width * image.height > pillow.MAX_IMAGE_PIXELS:  # where Pillow only warns
                raise ValueError(f"{image.width} x {image.height} pixels are too many")
            decoded: Image = image.convert("RGB")  # ImageNet has grey and CMYK files too
            return decoded
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        raise ValueError(
            f"{path}: the image does not decode ({type(error).__name__}: {error})"
        ) from None
