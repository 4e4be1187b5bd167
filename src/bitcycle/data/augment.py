"""Random crop with padding and horizontal flip of a whole batch at once, keyed by sample index.

`draw_crops` is the randomness (a pure function of seed, epoch and index), `crop_and_flip` the
tensor work. The usual per-image transform does the same 128 times in Python.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bitcycle.data.batch import Key
from bitcycle.data.counter import Purpose, bits, integers


class Crops(NamedTuple):
    """Per sample: the window's upper left corner in the padded image, and 1 if it is mirrored."""

    tops: Tensor
    lefts: Tensor
    flips: Tensor


def draw_crops(indices: NDArray[np.int64], key: Key, *, padding: int, flip: bool = True) -> Crops:
    """Crops for these samples: corners uniform over the (2 * padding + 1)^2, flips fair."""
    positions = 2 * padding + 1
    tops = integers(bits(key.seed, Purpose.CROP_Y, key.epoch, indices), positions)
    lefts = integers(bits(key.seed, Purpose.CROP_X, key.epoch, indices), positions)
    flips = integers(bits(key.seed, Purpose.FLIP, key.epoch, indices), 2)
    if not flip:
        flips = np.zeros_like(flips)
    return Crops(torch.from_numpy(tops), torch.from_numpy(lefts), torch.from_numpy(flips))


def crop_and_flip(images: Tensor, crops: Crops, *, padding: int) -> Tensor:
    """Cut a window of the original size out of each zero-padded image, then mirror some.

    Any dtype, (N, C, H, W) in and out. Every image row of the result is one contiguous run of the
    padded batch, so the batch is a single `index_select` of such runs.
    """
    num, channels, height, width = images.shape
    device = images.device
    tops, lefts, flips = (t.to(device) for t in crops)
    padded = F.pad(images, (padding,) * 4).contiguous()  # (N, C, H + 2p, W + 2p)
    row_length = width + 2 * padding
    runs = padded.view(-1).unfold(0, width, 1)  # (every start in memory, W), a view
    planes = torch.arange(num * channels, device=device).view(num, channels, 1)
    rows = torch.arange(height, device=device) + tops.view(num, 1, 1)
    starts = (planes * (height + 2 * padding) + rows) * row_length + lefts.view(num, 1, 1)
    cropped = runs.index_select(0, starts.view(-1)).view(num, channels, height, width)
    both = torch.cat([cropped, cropped.flip(3)])  # choosing from both is faster than torch.where
    return both.index_select(0, torch.arange(num, device=device) + num * flips)
