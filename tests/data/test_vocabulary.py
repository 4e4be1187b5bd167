"""Vocabularies: their order, and a cache that is atomic, checked and dispensable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bitcycle.data import vocabulary as module
from bitcycle.data.vocabulary import build_vocabulary, cached_vocabulary, default_cache_dir


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "train.txt"
    path.write_text(" b a b \n c \n\n", encoding="utf-8")
    return path


def test_words_are_ordered_by_count_then_alphabet_with_eos_and_unk(text):
    assert build_vocabulary(text) == ("<eos>", "b", "a", "c", "<unk>")


def test_only_a_newline_ends_a_line(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes("a\x0cb\u2028c\r d\n".encode())
    assert build_vocabulary(path) == ("<eos>", "a", "b", "c", "d", "<unk>")


def test_the_second_time_the_text_is_not_counted(text, tmp_path, monkeypatch):
    first = cached_vocabulary(text, tmp_path / "cache")
    monkeypatch.setattr(module, "build_vocabulary", pytest.fail)
    assert cached_vocabulary(text, tmp_path / "cache") == first
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".json"]


def test_a_changed_text_is_counted_again(text, tmp_path):
    cached_vocabulary(text, tmp_path)
    text.write_text("z z\n", encoding="utf-8")
    assert cached_vocabulary(text, tmp_path) == ("z", "<eos>", "<unk>")


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: "",
        lambda content: content[:20],
        lambda content: "[]",
        lambda content: "{}",
        lambda content: content.replace('"b"', '"a"'),
        lambda content: content.replace('"<eos>", ', ""),
        lambda content: content.replace('"a"', "1"),
        lambda content: json.dumps({**json.loads(content), "sha256": "0"}),
    ],
)
def test_a_damaged_cache_is_rebuilt(text, tmp_path, damage):
    folder = tmp_path / "cache"
    expected = cached_vocabulary(text, folder)
    (cache,) = folder.iterdir()
    intact = cache.read_text()
    cache.write_text(damage(intact))
    assert cached_vocabulary(text, folder) == expected
    assert cache.read_text() == intact


def test_a_cache_that_cannot_be_written_is_done_without(text, tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    assert cached_vocabulary(text, blocked / "cache") == build_vocabulary(text)


def test_a_write_that_fails_leaves_nothing_behind(text, tmp_path, monkeypatch):
    def fail(*_args):
        raise OSError("disk full")

    monkeypatch.setattr(module.os, "fsync", fail)
    assert cached_vocabulary(text, tmp_path / "cache") == build_vocabulary(text)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_users_cache_folder_is_the_default(text, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "bitcycle"
    cached_vocabulary(text)
    assert len(list(default_cache_dir().iterdir())) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "bitcycle"
