"""The registry's entry point: kinds, roots, and errors that say what to do."""

from __future__ import annotations

import pytest

from bitcycle.data import (
    DATASETS,
    load,
    load_corpus,
    load_graph,
    load_images,
)

from .layouts import write_text


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown dataset 'cifar-10'.*did you mean 'cifar10'"):
        load("cifar-10")


@pytest.mark.parametrize("loader", [load_images, load_graph])
def test_the_wrong_kind_is_answered_with_the_right_names(loader):
    with pytest.raises(
        ValueError, match="'ptb' is of kind 'language'; of kind '(image|graph)' are"
    ):
        loader("ptb", ".")
    with pytest.raises(ValueError, match="'digits' is of kind 'image'.*ptb, wikitext-103"):
        load_corpus("digits")


def test_a_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_text(tmp_path / "texts")
    assert load_corpus("ptb", "~/texts", cache_dir="~/cache").vocabulary
    assert list((tmp_path / "cache").iterdir())


def test_an_archive_that_is_still_packed_is_pointed_out(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").touch()
    with pytest.raises(FileNotFoundError, match=r"still packed: .*cifar-10-python\.tar\.gz"):
        load("cifar10", tmp_path)


def test_the_number_of_workers_is_checked():
    with pytest.raises(ValueError, match=r"num_workers \(0\)"):
        load("digits", num_workers=0)


def test_every_dataset_says_what_it_is():
    for name, info in DATASETS.items():
        assert info.name == name
        assert info.num_classes > 1
        sizes = {"image": 3, "language": 0, "graph": 1, "pair": 0}
        assert len(info.input_shape) == sizes[info.kind]


@pytest.mark.parametrize("name", [n for n, info in DATASETS.items() if info.needs_root])
def test_every_dataset_says_how_to_get_it_when_there_is_no_root(name, tmp_path):
    info = DATASETS[name]
    with pytest.raises(ValueError, match="give its root") as no_root:
        load(name)
    absent, empty = tmp_path / "absent", tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError) as no_folder:
        load(name, absent)
    with pytest.raises(FileNotFoundError) as no_files:
        load(name, empty)
    assert str(absent) in str(no_folder.value)
    assert str(empty) in str(no_files.value)
    for error in (no_root, no_folder, no_files):
        assert name in str(error.value)
        assert info.layout in str(error.value)
        assert info.source in str(error.value)
