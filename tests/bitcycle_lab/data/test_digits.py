"""The embedded digits: sizes, the fixed split, the error without scikit-learn."""

from __future__ import annotations

import sys

import pytest
import torch

from bitcycle.extras import MissingExtraError
from bitcycle_lab.data import load_images


def test_digits_are_1437_for_training_and_360_for_the_test():
    splits = load_images("digits")
    assert (len(splits.train), len(splits.test), splits.num_classes) == (1437, 360, 10)
    assert splits.train.pixels.shape[1:] == (1, 8, 8)
    assert torch.bincount(splits.test.targets).min() >= 30  # every class is there


def test_the_split_is_fixed_and_loses_no_image():
    from sklearn.datasets import load_digits

    first, second = load_images("digits"), load_images("digits")
    assert torch.equal(first.test.pixels, second.test.pixels)
    together = torch.cat([first.train.pixels, first.test.pixels]).flatten(1).long()
    original = torch.from_numpy(load_digits().data).long()
    weights = torch.arange(1, 65)
    assert torch.equal((together * weights).sum(1).sort()[0], (original * weights).sum(1).sort()[0])


def test_without_scikit_learn_the_install_command_is_named(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Absent(), *sys.meta_path])
    with pytest.raises(MissingExtraError, match=r"\[train\]"):
        load_images("digits")


class _Absent:
    """An import hook that hides scikit-learn."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "sklearn":
            raise ModuleNotFoundError(f"No module named {name!r}", name="sklearn")
