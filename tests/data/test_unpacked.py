"""Gzipped files that stay within what data of their size could be."""

import gzip
import io

import pytest

from bitcycle.data.archive import FLOOR, GROWTH, most_bytes, open_unpacked


@pytest.mark.parametrize("name", ["a.bin", "a.gz"])
def test_both_forms_have_the_same_bytes(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"abc\ndef") if name.endswith(".gz") else b"abc\ndef")
    with open_unpacked(path) as file:
        assert file.read(2) == b"ab"
        assert file.read() == b"c\ndef"
    with open_unpacked(path) as file, io.TextIOWrapper(file, encoding="ascii") as text:
        assert list(text) == ["abc\n", "def"]


def test_the_limit_follows_the_packed_size(tmp_path):
    (tmp_path / "a.gz").write_bytes(bytes(1000))
    (tmp_path / "a.bin").write_bytes(bytes(1000))
    assert most_bytes(tmp_path / "a.gz") == FLOOR + GROWTH * 1000
    assert most_bytes(tmp_path / "a.bin") == 1000


@pytest.mark.parametrize(
    "read", [lambda file: file.read(), lambda file: io.TextIOWrapper(file).read()]
)
def test_a_bomb_is_an_error_and_not_all_of_the_memory(tmp_path, read, monkeypatch):
    monkeypatch.setattr("bitcycle.data.archive.FLOOR", 1000)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(10**6), 9))
    with open_unpacked(path) as file, pytest.raises(ValueError, match="unpacks to more than"):
        read(file)
