"""Images in memory as uint8: gather a batch, crop and flip it, normalize it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bitcycle_lab.data.base import ImageSplits
from bitcycle_lab.data.batches import Key, upload
from bitcycle_lab.data.counter import Purpose, draw_bits, integers


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageArrays:
    """Pixels (N, C, H, W) in uint8 and class numbers (N,) in int64, on one device.

    A value p of channel c is normalized to (p / max_value - mean[c]) / std[c]. In training,
    `padding` crops the zero-padded image at random and `flip` mirrors half of the images.
    """

    pixels: Tensor
    targets: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_value: float = 255.0
    padding: int = 0
    flip: bool = False

    num_prefetch = 0

    def __post_init__(self) -> None:
        if self.pixels.dim() != 4 or self.pixels.dtype != torch.uint8:
            raise ValueError(
                f"pixels must be (N, C, H, W) in uint8, not {tuple(self.pixels.shape)} "
                f"in {self.pixels.dtype}"
            )
        if self.targets.shape != self.pixels.shape[:1] or self.targets.dtype != torch.int64:
            raise ValueError(
                f"targets must be one int64 per image, not {tuple(self.targets.shape)} "
                f"in {self.targets.dtype} for {len(self.pixels)} images"
            )
        if not len(self.mean) == len(self.std) == self.pixels.shape[1]:
            raise ValueError(f"mean and std need one number per channel: {self.pixels.shape[1]}")

    def __len__(self) -> int:
        return len(self.pixels)

    def fetch(self, indices: NDArray[np.int64], key: Key | None) -> tuple[Tensor, Tensor]:
        """Normalized float32 images and their classes; augmented if there is a key."""
        chosen = upload(torch.from_numpy(np.ascontiguousarray(indices)), self.pixels.device)
        pixels = self.pixels.index_select(0, chosen)
        if key is not None and (self.padding or self.flip):
            crops = draw_crops(indices, key, padding=self.padding, flip=self.flip)
            pixels = crop_and_flip(pixels, crops, padding=self.padding)
        return self.normalize(pixels), self.targets.index_select(0, chosen)

    def normalize(self, pixels: Tensor) -> Tensor:
        """uint8 pixels to float32 inputs."""
        return normalize(pixels, mean=self.mean, std=self.std, max_value=self.max_value)

    def to(self, device: torch.device | str) -> ImageArrays:
        """The same images on `device`; a fetch then runs there."""
        return replace(self, pixels=self.pixels.to(device), targets=self.targets.to(device))


def make_splits(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    num_classes: int,
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    max_value: float = 255.0,
    padding: int = 0,
    flip: bool = False,
) -> ImageSplits:
    """Splits from pixels and targets; only training images are augmented.

    statistics: mean and std per channel; by default those of the training images.
    """
    mean, std = statistics or channel_statistics(train[0], max_value=max_value)

    def images(pixels: Tensor, targets: Tensor, padding: int, flip: bool) -> ImageArrays:
        return ImageArrays(
            pixels=pixels, targets=targets, mean=mean, std=std, max_value=max_value,
            padding=padding, flip=flip,
        )  # fmt: skip

    return ImageSplits(
        train=images(*train, padding, flip), test=images(*test, 0, False), num_classes=num_classes
    )


class Crops(NamedTuple):
    """Per sample: the upper left corner of its crop in the padded image, and 1 for a flip."""

    tops: Tensor
    lefts: Tensor
    flips: Tensor


def draw_crops(indices: NDArray[np.int64], key: Key, *, padding: int, flip: bool = True) -> Crops:
    """Draw crops: corners uniform over the (2 * padding + 1)^2 positions, flips with p = 1/2."""
    positions = 2 * padding + 1
    tops = integers(draw_bits(key.seed, Purpose.CROP_Y, key.epoch, indices), positions)
    lefts = integers(draw_bits(key.seed, Purpose.CROP_X, key.epoch, indices), positions)
    flips = integers(draw_bits(key.seed, Purpose.FLIP, key.epoch, indices), 2)
    if not flip:
        flips = np.zeros_like(flips)
    return Crops(torch.from_numpy(tops), torch.from_numpy(lefts), torch.from_numpy(flips))


def crop_and_flip(images: Tensor, crops: Crops, *, padding: int) -> Tensor:
    """Crop each zero-padded image to its original size, then flip some horizontally.

    Any dtype, (N, C, H, W) in and out. Every image row of the result is contiguous in the padded
    batch, so the batch is a single `index_select` of such rows.
    """
    num, channels, height, width = images.shape
    device = images.device
    tops, lefts, flips = (upload(t, device) for t in crops)
    padded = F.pad(images, (padding,) * 4).contiguous()  # (N, C, H + 2p, W + 2p)
    row_length = width + 2 * padding
    runs = padded.view(-1).unfold(0, width, 1)  # (every start in memory, W), a view
    planes = torch.arange(num * channels, device=device).view(num, channels, 1)
    rows = torch.arange(height, device=device) + tops.view(num, 1, 1)
    starts = (planes * (height + 2 * padding) + rows) * row_length + lefts.view(num, 1, 1)
    cropped = runs.index_select(0, starts.view(-1)).view(num, channels, height, width)
    both = torch.cat([cropped, cropped.flip(3)])  # choosing from both is faster than torch.where
    return both.index_select(0, torch.arange(num, device=device) + num * flips)


def normalize(
    pixels: Tensor, *, mean: tuple[float, ...], std: tuple[float, ...], max_value: float = 255.0
) -> Tensor:
    """(p / max_value - mean[c]) / std[c], as one multiplication and one addition.

    >>> normalize(torch.tensor([[[[255]]]], dtype=torch.uint8), mean=(0.5,), std=(0.25,)).item()
    2.0
    """
    gains = [1 / (max_value * s) for s in std]
    shifts = [-m / s for m, s in zip(mean, std, strict=True)]
    gain, shift = upload(torch.tensor([gains, shifts]), pixels.device).view(2, 1, -1, 1, 1)
    return pixels.to(torch.float32).mul_(gain).add_(shift)


def channel_statistics(
    pixels: Tensor, *, max_value: float = 255.0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all images, from exact integer counts.

    >>> channel_statistics(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    ((0.5,), (0.5,))
    """
    means, stds = [], []
    values = torch.arange(256, dtype=torch.float64) / max_value
    for channel in range(pixels.shape[1]):
        counts = torch.bincount(pixels[:, channel].reshape(-1), minlength=256).double()
        weights = counts / counts.sum()
        mean = (weights * values).sum()
        means.append(mean.item())
        stds.append((weights * (values - mean) ** 2).sum().sqrt().item() or 1.0)
    return tuple(means), tuple(stds)
