"""The ImageNet folder: classes, order kept by workers, missing and broken files."""

from __future__ import annotations

import copy
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from bitcycle.data import Batches, Key, OnePass, load_images
from bitcycle.data.imagenet import MEAN, STD, ImageFiles, decode_centre
from bitcycle.data.images import normalize

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
    with pytest.raises(ValueError, match="different classes: n02007558, n09999999"):
        load_images("imagenet", root)


def test_a_file_that_breaks_later_is_named_when_it_is_met(root):
    path = root / "val" / CLASSES[0] / f"{CLASSES[0]}_1.JPEG"
    path.write_bytes(path.read_bytes()[:400])
    test = small(load_images("imagenet", root).test)
    with pytest.raises(ValueError, match=r"n01440764_1\.JPEG: the image does not decode"):
        list(OnePass(test, batch_size=2))
