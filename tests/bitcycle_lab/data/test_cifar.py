"""CIFAR-10 and CIFAR-100 in both layouts, missing, damaged and malicious files."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from bitcycle_lab.data import load_images

from .layouts import cifar10_parts, cifar100_parts, write_binary, write_pickled

TRAIN = [f"data_batch_{number}" for number in range(1, 6)]


def check_cifar10(splits, parts):
    pixels = np.concatenate([parts[name][0] for name in TRAIN])
    labels = np.concatenate([parts[name][1] for name in TRAIN])
    assert torch.equal(splits.train.pixels, torch.from_numpy(pixels))
    assert torch.equal(splits.train.targets, torch.from_numpy(labels))
    assert torch.equal(splits.test.pixels, torch.from_numpy(parts["test_batch"][0]))
    assert torch.equal(splits.test.targets, torch.from_numpy(parts["test_batch"][1]))


@pytest.mark.parametrize("below", ["cifar-10-batches-bin", "."])
def test_cifar10_is_read_from_its_binary_layout(tmp_path, below):
    parts = cifar10_parts()
    write_binary(tmp_path / below, parts)
    check_cifar10(load_images("cifar10", tmp_path), parts)


@pytest.mark.parametrize(("below", "python2"), [("cifar-10-batches-py", True), (".", False)])
def test_cifar10_is_read_from_its_pickled_layout(tmp_path, below, python2):
    parts = cifar10_parts()
    write_pickled(tmp_path / below, parts, python2=python2)
    check_cifar10(load_images("cifar10", tmp_path), parts)


def test_cifar100_is_the_same_in_both_layouts(tmp_path):
    parts = cifar100_parts()
    write_binary(tmp_path / "one" / "cifar-100-binary", parts, coarse=True)
    write_pickled(tmp_path / "two" / "cifar-100-python", parts, label_key="fine_labels")
    one, two = (load_images("cifar100", tmp_path / name) for name in ("one", "two"))
    assert torch.equal(one.train.pixels, two.train.pixels)
    assert one.train.targets.tolist() == two.train.targets.tolist() == parts["train"][1].tolist()
    assert one.num_classes == 100


def test_cifar10_has_the_papers_normalization_and_cifar100_its_own(tmp_path):
    write_binary(tmp_path / "cifar-10-batches-bin", cifar10_parts())
    parts = cifar100_parts()
    write_binary(tmp_path / "cifar-100-binary", parts, coarse=True)
    ten, hundred = load_images("cifar10", tmp_path), load_images("cifar100", tmp_path)
    assert ten.train.mean == ten.test.mean == (0.4914, 0.4822, 0.4465)
    assert ten.train.std == ten.test.std == (0.2023, 0.1994, 0.2010)
    scaled = parts["train"][0] / 255
    assert hundred.test.mean == pytest.approx(scaled.mean(axis=(0, 2, 3)))
    assert hundred.test.std == pytest.approx(scaled.std(axis=(0, 2, 3)))


def test_only_training_images_are_augmented(tmp_path):
    write_binary(tmp_path, cifar10_parts())
    splits = load_images("cifar10", tmp_path)
    assert (splits.train.padding, splits.train.flip) == (4, True)
    assert (splits.test.padding, splits.test.flip) == (0, False)


@pytest.mark.parametrize(
    ("write", "folder", "absent"),
    [
        (write_binary, "cifar-10-batches-bin", "data_batch_3.bin"),
        (write_pickled, "cifar-10-batches-py", "test_batch"),
    ],
)
def test_a_missing_file_is_named(tmp_path, write, folder, absent):
    write(tmp_path / folder, cifar10_parts())
    (tmp_path / folder / absent).unlink()
    with pytest.raises(FileNotFoundError) as error:
        load_images("cifar10", tmp_path)
    assert str(tmp_path / folder / absent) in str(error.value)
    assert "cs.toronto.edu" in str(error.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "0 bytes"),
        (bytes(3073 * 4 - 1), "12,291"),
        (b"\x0a" + bytes(3072), "10"),
    ],
)
def test_a_damaged_binary_file_is_named_with_the_problem(tmp_path, content, problem):
    write_binary(tmp_path, cifar10_parts())
    (tmp_path / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(ValueError, match=rf"data_batch_2\.bin: .*{problem}"):
        load_images("cifar10", tmp_path)


GOOD = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ([1], "list"),
        ({"data": GOOD}, "'labels'"),
        ({"data": GOOD, "labels": [1]}, "2 images with 1 labels"),
        ({"data": GOOD, "labels": "ab"}, "labels"),
        ({"data": GOOD, "labels": [0, 10]}, "10"),
        ({"data": GOOD[:, 1:], "labels": [0, 1]}, "3071"),
        ({"data": GOOD.astype(float), "labels": [0, 1]}, "float64"),
        ({"data": "text", "labels": [0, 1]}, "str"),
        ({"data": GOOD[:0], "labels": []}, "0 images"),
    ],
)
def test_a_damaged_pickled_file_is_named_with_the_problem(tmp_path, content, problem):
    write_pickled(tmp_path, cifar10_parts())
    (tmp_path / "data_batch_4").write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=rf"data_batch_4: .*{problem}"):
        load_images("cifar10", tmp_path)
