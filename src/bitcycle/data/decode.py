"""One image file to pixels: the crops of ImageNet training and evaluation, with Pillow."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitcycle.data.batch import Key
from bitcycle.data.counter import Purpose, bits, integers, uniforms
from bitcycle.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image, Resampling

AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
NUM_TRIALS = 10
FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # no EPS, for which Pillow starts a program


class Window(NamedTuple):
    """A rectangle of an image, in pixels."""

    left: int
    top: int
    width: int
    height: int


def draw_window(width: int, height: int, key: Key, index: int) -> Window:
    """The random-resized crop of Inception: 8-100 % of the area, ratio 3/4..4/3 (log-uniform).

    A rectangle that does not fit is drawn again, ten times; then the largest allowed centre part
    is taken. A pure function of its arguments.
    """
    counter = np.array([index], np.int64)

    def draw(purpose: Purpose, trial: int) -> NDArray[np.uint64]:
        return bits(key.seed, purpose, key.epoch, counter, trial)

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


def decode_random(path: Path, size: int, key: Key, index: int) -> NDArray[np.uint8]:
    """A random-resized crop (size, size, 3), mirrored for half of the draws."""
    image = _open(path)
    full_width, full_height = image.size
    left, top, width, height = draw_window(full_width, full_height, key, index)
    resized = image.crop((left, top, left + width, top + height)).resize((size, size), _bilinear())
    pixels: NDArray[np.uint8] = np.asarray(resized)
    counter = np.array([index], np.int64)
    if integers(bits(key.seed, Purpose.FLIP, key.epoch, counter), 2)[0]:
        pixels = pixels[:, ::-1]
    return pixels


def decode_centre(path: Path, size: int) -> NDArray[np.uint8]:
    """The short side scaled to size * 256/224, then the centre (size, size, 3)."""
    image = _open(path)
    width, height = image.size
    short = round(size * 256 / 224)
    if width <= height:
        new_size = (short, max(short, int(short * height / width)))
    else:
        new_size = (max(short, int(short * width / height)), short)
    left, top = round((new_size[0] - size) / 2), round((new_size[1] - size) / 2)
    resized = image.resize(new_size, _bilinear()).crop((left, top, left + size, top + size))
    pixels: NDArray[np.uint8] = np.asarray(resized)
    return pixels


def read_header(path: Path) -> tuple[int, int]:
    """Width and height of an image file, without decoding it; ValueError if it is no image."""
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
            decoded: Image = image.convert("RGB")  # also the grey and CMYK files of ImageNet
            return decoded
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        raise ValueError(
            f"{path}: the image does not decode ({type(error).__name__}: {error}); "
            "fetch this file again or remove it"
        ) from None


def _bilinear() -> Resampling:
    pillow = require("PIL.Image", extra="train", purpose="image files")
    bilinear: Resampling = pillow.Resampling.BILINEAR
    return bilinear
