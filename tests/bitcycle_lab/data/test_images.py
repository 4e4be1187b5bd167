"""In-memory images: normalization, statistics, crops, tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitcycle_lab.data import Batches, ImageArrays, Key, OnePass, Samples, Tensors
from bitcycle_lab.data.images import Crops, channel_statistics, crop_and_flip, draw_crops, normalize


def make(**changes):
    fields = {
        "pixels": torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8),
        "targets": torch.arange(5),
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.25, 0.3),
    }
    return ImageArrays(**(fields | changes))


def test_normalization_is_scale_then_subtract_then_divide():
    images = make()
    inputs, targets = images.fetch(np.array([3, 1]), None)
    mean, std = torch.tensor(images.mean).view(3, 1, 1), torch.tensor(images.std).view(3, 1, 1)
    expected = (images.pixels[[3, 1]].float() / 255 - mean) / std
    assert torch.allclose(inputs, expected, atol=1e-6)
    assert inputs.dtype == torch.float32
    assert targets.tolist() == [3, 1]


def test_pixels_outside_the_image_are_black_before_normalization():
    images = make(
        pixels=torch.full((1, 3, 8, 8), 255, dtype=torch.uint8),
        targets=torch.zeros(1).long(),
        padding=4,
    )
    black = normalize(torch.zeros(1, 3, 1, 1, dtype=torch.uint8), mean=images.mean, std=images.std)
    seen = torch.cat([images.fetch(np.array([0]), Key(0, epoch))[0] for epoch in range(50)])
    is_black = (seen == black).all(dim=1)
    assert is_black.any()
    assert not is_black.all()


def test_without_a_key_nothing_is_augmented():
    images = make(padding=2, flip=True)
    plain, _ = images.fetch(np.arange(5), None)
    assert torch.equal(plain, images.normalize(images.pixels))
    augmented, _ = images.fetch(np.arange(5), Key(0, 0))
    assert not torch.equal(plain, augmented)


def test_statistics_equal_those_of_the_float_images():
    pixels = torch.randint(0, 256, (20, 3, 6, 6), dtype=torch.uint8)
    mean, std = channel_statistics(pixels)
    scaled = pixels.double() / 255
    assert mean == pytest.approx(scaled.mean(dim=(0, 2, 3)).tolist())
    assert std == pytest.approx(scaled.std(dim=(0, 2, 3), correction=0).tolist())


def test_a_constant_channel_has_a_std_that_can_be_divided_by():
    assert channel_statistics(torch.zeros(2, 1, 2, 2, dtype=torch.uint8)) == ((0.0,), (1.0,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pixels": torch.zeros(5, 3, 8, 8)}, "uint8"),
        ({"pixels": torch.zeros(5, 8, 8, dtype=torch.uint8)}, r"\(N, C, H, W\)"),
        ({"targets": torch.zeros(4, dtype=torch.int64)}, r"\(4,\)"),
        ({"targets": torch.zeros(5)}, "float32"),
        ({"mean": (0.5,)}, "channel: 3"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        make(**change)


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


@settings(max_examples=50)
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


def test_tensors_are_samples_that_loaders_take_and_move():
    samples = Tensors(torch.arange(20.0).view(10, 2), torch.arange(10))
    moved = samples.to("meta")
    assert moved.inputs.device.type == moved.targets.device.type == "meta"
    assert isinstance(samples, Samples)
    assert len(samples) == 10
    seen = [batch.targets for batch in OnePass(samples, batch_size=4)]
    assert torch.cat(seen).tolist() == list(range(10))
    batches = Batches(samples, batch_size=4, seed=0)
    epoch = torch.cat([batches.batch_at(step).targets for step in range(3)])
    assert sorted(epoch.tolist()) == list(range(10))


@pytest.mark.parametrize("shapes", [((3, 2), (4,)), ((), ()), ((3,), ())])
def test_one_input_and_one_target_per_sample(shapes):
    with pytest.raises(ValueError, match="sample"):
        Tensors(*(torch.zeros(shape) for shape in shapes))
