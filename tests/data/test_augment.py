"""Batched crop and flip against the per-image loop, and the statistics of the draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitcycle.data.augment import Crops, crop_and_flip, draw_crops
from bitcycle.data.batch import Key


def crop_one_by_one(images: torch.Tensor, crops: Crops, padding: int) -> torch.Tensor:
    """The transform as it is usually written."""
    _, channels, height, width = images.shape
    results = []
    for image, top, left, flip in zip(images, *(c.tolist() for c in crops), strict=True):
        padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
        padded[:, padding : padding + height, padding : padding + width] = image
        window = padded[:, top : top + height, left : left + width]
        results.append(window.flip(2) if flip else window)
    return torch.stack(results)


@settings(deadline=None)
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    st.integers(0, 4),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_a_batch_equals_the_loop_over_images(shape, padding, seed, flip):
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    crops = draw_crops(np.arange(shape[0]), Key(seed, 3), padding=padding, flip=flip)
    batched = crop_and_flip(images, crops, padding=padding)
    assert torch.equal(batched, crop_one_by_one(images, crops, padding))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
def test_any_dtype_and_memory_layout_is_cropped(dtype):
    images = torch.arange(2 * 4 * 4 * 3).view(2, 4, 4, 3).permute(0, 3, 1, 2).to(dtype)
    crops = draw_crops(np.array([5, 9]), Key(0, 0), padding=2)
    assert torch.equal(crop_and_flip(images, crops, padding=2), crop_one_by_one(images, crops, 2))


def test_the_81_corners_and_the_flips_are_about_uniform():
    crops = draw_crops(np.arange(81_000), Key(seed=1, epoch=2), padding=4)
    counts = torch.bincount(crops.tops * 9 + crops.lefts, minlength=81)
    assert len(counts) == 81
    assert 850 < counts.min() <= counts.max() < 1150  # 1000 expected, standard deviation 32
    assert abs(crops.flips.float().mean().item() - 0.5) < 0.01
    flips_per_corner = torch.zeros(81).index_add_(
        0, crops.tops * 9 + crops.lefts, crops.flips.float()
    )
    assert (flips_per_corner / counts - 0.5).abs().max() < 0.08  # flips know nothing of corners


def test_a_draw_depends_on_seed_epoch_and_index_and_on_nothing_else():
    indices = np.arange(100)
    crops = draw_crops(indices, Key(1, 2), padding=4)
    shuffled = draw_crops(indices[::-1].copy(), Key(1, 2), padding=4)
    assert all(torch.equal(a, b.flip(0)) for a, b in zip(crops, shuffled, strict=True))
    for other in (Key(2, 2), Key(1, 3)):
        assert not torch.equal(crops.tops, draw_crops(indices, other, padding=4).tops)
