"""Crops of image files: where they may lie, what they show, what happens to a broken file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bitcycle.data import Key
from bitcycle.data.imagenet import decode_centre, decode_random, draw_window, read_header


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 10**6), st.integers(0, 90))
def test_a_window_lies_inside_the_image(width, height, index, epoch):
    left, top, w, h = draw_window(width, height, Key(0, epoch), index)
    assert 0 <= left < left + w <= width
    assert 0 <= top < top + h <= height


def test_windows_cover_8_to_100_percent_in_ratios_3_4_to_4_3():
    windows = [draw_window(500, 400, Key(0, 0), index) for index in range(2000)]
    areas = np.array([w.width * w.height / 200_000 for w in windows])
    ratios = np.array([w.width / w.height for w in windows])
    assert 0.075 < areas.min() < 0.1
    assert 0.9 < areas.max() <= 1.0
    assert 0.74 < ratios.min() < 0.77
    assert 1.3 < ratios.max() < 1.35


def test_an_extreme_image_gives_its_centre():
    assert draw_window(1000, 10, Key(0, 0), 0) == (493, 0, 13, 10)
    assert draw_window(10, 1000, Key(0, 0), 0) == (0, 493, 10, 13)


def test_a_crop_is_a_function_of_key_and_index(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)).save(path)
    crop = decode_random(path, 16, Key(1, 2), 3)
    assert crop.shape == (16, 16, 3)
    assert np.array_equal(crop, decode_random(path, 16, Key(1, 2), 3))
    for key, index in ((Key(2, 2), 3), (Key(1, 3), 3), (Key(1, 2), 4)):
        assert not np.array_equal(crop, decode_random(path, 16, key, index))


def test_half_of_the_crops_are_mirrored(tmp_path):
    path = tmp_path / "left_to_right.png"
    ramp = np.broadcast_to(np.arange(200, dtype=np.uint8)[None, :, None], (200, 200, 3))
    Image.fromarray(np.ascontiguousarray(ramp)).save(path)
    crops = [decode_random(path, 8, Key(0, 0), index).astype(int) for index in range(200)]
    mirrored = sum(crop[0, 0, 0] > crop[0, -1, 0] for crop in crops)
    assert 70 < mirrored < 130


@pytest.mark.parametrize("size", [(300, 500), (500, 300), (40, 31)])
def test_the_centre_of_an_image_scaled_to_256_is_shown(tmp_path, size):
    path = tmp_path / "a.png"
    image = Image.new("RGB", size, "black")
    width, height = size
    image.putpixel((width // 2, height // 2), (255, 255, 255))
    image.save(path)
    pixels = decode_centre(path, 224)
    assert pixels.shape == (224, 224, 3)
    row, column = np.unravel_index(pixels[..., 0].argmax(), (224, 224))
    scale = 256 / min(size)
    assert abs(row - 112) <= scale + 1
    assert abs(column - 112) <= scale + 1


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGBA", "P"])
def test_images_of_other_modes_become_rgb(tmp_path, mode):
    path = tmp_path / ("a.jpg" if mode in {"L", "CMYK"} else "a.png")
    Image.new(mode, (30, 30)).save(path)
    assert decode_centre(path, 8).shape == (8, 8, 3)
    assert read_header(path) == (30, 30)


def test_a_file_that_does_not_decode_is_named(tmp_path):
    path = tmp_path / "cut.jpeg"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:1500])
    assert read_header(path) == (64, 64)
    with pytest.raises(ValueError, match=r"cut\.jpeg: the image does not decode"):
        decode_random(path, 8, Key(0, 0), 0)
    path.write_bytes(b"text")
    with pytest.raises(ValueError, match="not an image"):
        read_header(path)
    with pytest.raises(ValueError, match=r"cut\.jpeg: the image does not decode"):
        decode_centre(path, 8)
