"""MNIST-style files, plain and gzipped, in both spellings; damaged ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bitcycle_lab.data import load_images

from .layouts import idx_bytes, write_idx


@pytest.mark.parametrize(
    ("name", "below", "zipped"),
    [
        ("mnist", ".", False),
        ("mnist", "MNIST/raw", True),
        ("fashion-mnist", "FashionMNIST/raw", False),
    ],
)
def test_idx_files_are_read_where_people_have_them(tmp_path, name, below, zipped):
    write_idx(tmp_path / below, zipped=zipped)
    splits = load_images(name, tmp_path)
    assert splits.train.pixels.shape == (12, 1, 28, 28)
    assert splits.test.targets.tolist() == [0, 1, 2, 3, 4]
    expected = np.random.default_rng(5).integers(0, 256, (5, 28, 28))
    assert torch.equal(splits.test.pixels[:, 0], torch.from_numpy(expected).to(torch.uint8))


def test_the_spelling_with_a_dot_is_read_too(tmp_path):
    for path in list(write_idx(tmp_path).iterdir()):
        path.rename(tmp_path / path.name.replace("-idx", ".idx"))
    assert len(load_images("mnist", tmp_path).train) == 12


IMAGES = idx_bytes(np.zeros((12, 28, 28)))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("train-images-idx3-ubyte", b"", "header"),
        ("train-images-idx3-ubyte", b"\x1f\x8b" + IMAGES[2:], "0x1f8b0803"),
        ("train-images-idx3-ubyte", IMAGES[:-1], "9,407"),
        ("train-images-idx3-ubyte", IMAGES + b"x", "9,409"),
        ("train-images-idx3-ubyte", idx_bytes(np.zeros((12, 27, 28))), "27"),
        ("train-images-idx3-ubyte", idx_bytes(np.zeros((0, 28, 28))), "0 bytes"),
        ("train-labels-idx1-ubyte", idx_bytes(np.zeros(11)), "11 labels"),
        ("t10k-labels-idx1-ubyte", idx_bytes(np.full(5, 10)), "10"),
        ("t10k-labels-idx1-ubyte", IMAGES, "0x00000803"),
    ],
)
def test_a_damaged_file_is_named_with_the_problem(tmp_path, name, content, problem):
    (write_idx(tmp_path) / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}: .*{problem}"):
        load_images("mnist", tmp_path)


def test_a_missing_file_is_named(tmp_path):
    (write_idx(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte\.gz"):
        load_images("mnist", tmp_path)
