"""In-memory images: normalization, statistics, checks at birth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bitcycle.data import ImageArrays, Key
from bitcycle.data.images import channel_statistics, normalize


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
        ({"targets": torch.zeros(4, dtype=torch.int64)}, "one int64 per image"),
        ({"targets": torch.zeros(5)}, "one int64 per image"),
        ({"mean": (0.5,)}, "one number per channel: 3"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        make(**change)


def test_a_fetch_happens_on_the_device_of_the_images():
    assert make().to("meta").pixels.device.type == "meta"
