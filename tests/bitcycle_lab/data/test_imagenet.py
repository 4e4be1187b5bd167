"""ImageNet from folders: files, crops and decoding."""

from __future__ import annotations

import copy
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bitcycle_lab.data import Batches, Key, OnePass, load_images
from bitcycle_lab.data.imagenet import (
    MEAN,
    STD,
    ImageFiles,
    decode_centre,
    decode_random,
    draw_window,
    read_header,
)
from bitcycle_lab.data.images import normalize

CLASSES = ("n01440764", "n01443537", "n02007558")


@pytest.fixture
def root(tmp_path):
    generator = np.random.default_rng(0)
    for split, number in (("train", 4), ("val", 2)):
        for name in CLASSES:
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for count in range(number):
                size = (*generator.integers(20, 40, 2), 3)
                picture = Image.fromarray(generator.integers(0, 256, size, np.uint8))
                picture.save(folder / f"{name}_{count}.JPEG", "JPEG")
    return tmp_path


def small(samples: ImageFiles, num_workers: int = 2) -> ImageFiles:
    return ImageFiles(
        paths=samples.paths, targets=samples.targets, size=16, num_workers=num_workers
    )


def test_classes_are_numbered_in_the_order_of_their_names(root):
    splits = load_images("imagenet", root)
    assert splits.num_classes == 3
    assert splits.train.targets.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert splits.test.targets.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_folder_called_imagenet_below_the_root_is_found(root, tmp_path_factory):
    above = tmp_path_factory.mktemp("data")
    shutil.copytree(root, above / "imagenet")
    assert len(load_images("imagenet", above).train) == 12


def test_images_are_224_and_normalized(root):
    test = load_images("imagenet", root).test
    inputs, targets = test.fetch(np.array([5, 0]), None)
    assert inputs.shape == (2, 3, 224, 224)
    assert targets.tolist() == [2, 0]
    pixels = torch.from_numpy(decode_centre(test.paths[5], 224).copy()).permute(2, 0, 1)
    assert torch.equal(inputs[0], normalize(pixels[None], mean=MEAN, std=STD)[0])


def test_batches_do_not_depend_on_the_number_of_workers(root):
    train = load_images("imagenet", root).train
    one, many = (
        list(Batches(small(train, workers), batch_size=5, seed=0).from_step(0, 7))
        for workers in (1, 4)
    )
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(one, many, strict=True))
    resumed = Batches(small(train), batch_size=5, seed=0).batch_at(6)
    assert torch.equal(resumed.inputs, one[6].inputs)


def test_a_pass_goes_through_the_files_in_order(root):
    batches = list(OnePass(small(load_images("imagenet", root).test), batch_size=4))
    assert [batch.targets.tolist() for batch in batches] == [[0, 0, 1, 1], [2, 2]]


def test_files_can_be_copied(root):
    train = small(load_images("imagenet", root).train)
    copied = copy.deepcopy(train)
    index = np.array([1])
    assert torch.equal(copied.fetch(index, Key(0, 0))[0], train.fetch(index, Key(0, 0))[0])


@pytest.mark.parametrize("absent", ["train", "val", f"val/{CLASSES[1]}/*"])
def test_what_is_missing_is_named(root, absent):
    for path in root.glob(absent):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(FileNotFoundError) as error:
        load_images("imagenet", root)
    assert str(root / absent.replace("*", "")).rstrip("/") in str(error.value)
    assert "image-net.org" in str(error.value)


def test_different_classes_in_the_splits_are_an_error(root):
    (root / "val" / CLASSES[2]).rename(root / "val" / "n09999999")
    with pytest.raises(ValueError, match="n02007558, n09999999"):
        load_images("imagenet", root)


def test_a_file_that_breaks_later_is_named_when_it_is_met(root):
    path = root / "val" / CLASSES[0] / f"{CLASSES[0]}_1.JPEG"
    path.write_bytes(path.read_bytes()[:400])
    test = small(load_images("imagenet", root).test)
    with pytest.raises(ValueError, match=r"n01440764_1\.JPEG"):
        list(OnePass(test, batch_size=2))


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
    with pytest.raises(ValueError, match=r"cut\.jpeg"):
        decode_random(path, 8, Key(0, 0), 0)
    path.write_bytes(b"text")
    with pytest.raises(ValueError, match="image"):
        read_header(path)
    with pytest.raises(ValueError, match=r"cut\.jpeg"):
        decode_centre(path, 8)
