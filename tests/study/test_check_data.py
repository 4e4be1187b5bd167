"""Data that cannot be there is one error, before anything is started."""

from dataclasses import replace

import pytest

from bitcycle.recipes import recipe
from bitcycle.study.check_data import check_data
from tests.study.small_studies import tiny

CIFAR = recipe("cifar10-resnet8-float32-small")


def test_data_that_is_built_in_or_whose_folder_is_there_passes(tmp_path):
    check_data([tiny(), replace(CIFAR, data=replace(CIFAR.data, root=str(tmp_path)))])


def test_a_missing_root_and_a_folder_that_is_not_there_are_errors(tmp_path):
    with pytest.raises(ValueError, match="'cifar10' is read from a folder: give its root"):
        check_data([tiny(), CIFAR])
    nowhere = replace(CIFAR, data=replace(CIFAR.data, root=str(tmp_path / "no")))
    with pytest.raises(FileNotFoundError, match="cifar10: not found"):
        check_data([nowhere])
