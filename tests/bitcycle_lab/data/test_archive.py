"""Untrusted files: gzip with a limit, pickles of arrays only."""

from __future__ import annotations

import gzip
import io
import pickle
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
import scipy.sparse

from bitcycle_lab.data import archive
from bitcycle_lab.data.archive import (
    FLOOR,
    GROWTH,
    as_array,
    max_unpacked_bytes,
    open_unpacked,
    read_dict,
    read_pickle,
)

from .layouts import Payload, python2_pickle


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
    assert max_unpacked_bytes(tmp_path / "a.gz") == FLOOR + GROWTH * 1000
    assert max_unpacked_bytes(tmp_path / "a.bin") == 1000


@pytest.mark.parametrize(
    "read", [lambda file: file.read(), lambda file: io.TextIOWrapper(file).read()]
)
def test_a_bomb_is_an_error_and_not_all_of_the_memory(tmp_path, read, monkeypatch):
    monkeypatch.setattr("bitcycle_lab.data.archive.FLOOR", 1000)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(10**6), 9))
    with open_unpacked(path) as file, pytest.raises(ValueError, match="unpacks"):
        read(file)


ARRAYS = {
    "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "big-endian": np.arange(4, dtype=">i4"),
    "empty": np.zeros((0, 3)),
    "bool": np.array([True, False]),
}


@pytest.mark.parametrize("protocol", range(2, 6))
def test_arrays_and_bytes_of_every_protocol_come_back(tmp_path, protocol):
    path = tmp_path / "array"
    path.write_bytes(pickle.dumps({**ARRAYS, "b": b"\xff", "none": b""}, protocol=protocol))
    content = read_dict(path)
    assert (content["b"], content["none"]) == (b"\xff", b"")
    for name, array in ARRAYS.items():
        read = as_array(content[name])
        np.testing.assert_array_equal(read, array)
        assert read.dtype == array.dtype


def test_a_pickle_of_python_2_and_numpy_1_comes_back(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = tmp_path / "old"
    path.write_bytes(python2_pickle({"data": array, "labels": [1, 2], "name": "batch"}))
    content = read_dict(path)
    np.testing.assert_array_equal(as_array(content["data"]), array)
    assert content["labels"] == [1, 2]
    # the hand-written bytes are those an ordinary unpickler understands
    plain = pickle.loads(path.read_bytes(), encoding="bytes")
    np.testing.assert_array_equal(plain[b"data"], array)


@pytest.mark.parametrize(
    "write",
    [
        lambda dense: pickle.dumps(scipy.sparse.csr_matrix(dense)),
        lambda dense: pickle.dumps(scipy.sparse.csr_array(dense)),
        lambda dense: python2_pickle(scipy.sparse.csr_matrix(dense)),
    ],
    ids=["matrix", "array", "python2"],
)
def test_a_sparse_matrix_comes_back_dense(tmp_path, write):
    dense = np.array([[0, 2, 0], [0, 0, 0], [1, 0, 3]], np.float32)
    path = tmp_path / "sparse"
    path.write_bytes(write(dense))
    np.testing.assert_array_equal(as_array(read_pickle(path)), dense)


@pytest.mark.parametrize("protocol", [0, 5])
def test_a_payload_is_refused_and_not_run(tmp_path, protocol):
    created = tmp_path / "created"
    payload = pickle.dumps({"data": Payload(created)}, protocol=protocol)
    path = tmp_path / "evil"
    path.write_bytes(payload)
    with pytest.raises(ValueError, match="open"):
        read_pickle(path)
    assert not created.exists()
    pickle.loads(payload)["data"].close()  # the same bytes do create the file when trusted
    assert created.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
        b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.__new__\x93.",  # a name inside an allowed one
        b"c_codecs\nencode\n}(S'a'\nI1\nub.",  # a change to an allowed one
        b"ccollections\ndefaultdict\n(N(dV__new__\nc_codecs\nencode\nstb.",
        b"cnumpy\nndarray\n(N(dV__init__\nc_codecs\nencode\nstb.",
        pickle.dumps(np.array([{}], dtype=object)),
        pickle.dumps(np.array(["a"])),
    ],
)
def test_other_ways_in_are_refused(tmp_path, program):
    path = tmp_path / "evil"
    path.write_bytes(program)
    before = [dict(vars(found)) for found in archive._ALLOWED.values()]
    with pytest.raises(ValueError, match="pickle|numbers"):
        as_array(read_pickle(path))
    assert [dict(vars(found)) for found in archive._ALLOWED.values()] == before


def test_every_cut_of_a_pickle_is_an_error_and_never_half_a_result(tmp_path):
    whole = pickle.dumps({"data": np.arange(9, dtype=np.uint8), "labels": [1]}, protocol=2)
    path = tmp_path / "cut"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="pickle"):
            read_dict(path)


def test_random_damage_is_a_value_error_or_harmless(tmp_path):
    whole = python2_pickle({"data": np.arange(9, dtype=np.uint8), "labels": [1, 2, 3]})
    generator = np.random.default_rng(0)
    path = tmp_path / "damaged"
    for _ in range(250):
        content = bytearray(whole)
        content[generator.integers(len(content))] = generator.integers(256)
        path.write_bytes(content)
        with suppress(ValueError):
            as_array(read_dict(path).get("data"))


def test_a_file_larger_than_any_of_them_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_PICKLE_BYTES", 10)
    path = tmp_path / "large"
    path.write_bytes(pickle.dumps(list(range(100))))
    with pytest.raises(ValueError, match="10"):
        read_pickle(path)


def test_an_array_whose_bytes_do_not_fit_its_shape_is_refused(tmp_path):
    path = tmp_path / "array"
    content = pickle.dumps(np.zeros(65_535, np.uint8), protocol=2)
    path.write_bytes(content.replace(b"M\xff\xff\x85", b"M\xff\xfe\x85"))
    with pytest.raises(ValueError, match=r"65535.*65279"):
        as_array(read_pickle(path))


@pytest.mark.parametrize(
    "change",
    [
        {"indices": np.array([0, 7])},
        {"indices": np.array([-1, 0])},
        {"indices": np.array([1])},
        {"indptr": np.array([0, 5, 2])},
        {"indptr": np.array([0, 2])},
        {"indptr": np.array([0, 1, 2**40])},
        {"indptr": np.array([0, 2**40]), "_shape": (1, 2)},
        {"indptr": np.array([0, 5, 2], np.uint8)},
        {"indptr": np.array([1, 1, 2])},
        {"data": np.array([1.0])},
        {"_shape": (2**40, -1)},
        {"_shape": (2, 2**60)},
        {"_shape": None},
        {"data": None},
    ],
)
def test_a_sparse_matrix_that_points_outside_itself_is_refused(tmp_path, change):
    matrix = scipy.sparse.csr_matrix(np.array([[1.0, 0.0], [0.0, 2.0]]))
    matrix.__dict__.update(change)
    path = tmp_path / "sparse"
    path.write_bytes(pickle.dumps(matrix))
    with pytest.raises(ValueError, match="array"):
        as_array(read_pickle(path))


def test_something_else_than_a_dict_or_an_array_is_said(tmp_path):
    path = tmp_path / "list"
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(ValueError, match="list"):
        read_dict(path)
    with pytest.raises(ValueError, match="list"):
        as_array(read_pickle(path))


# l0 = [], l1 = [l0, l0], ...: 2^60 values in 360 bytes
LISTS = b"](]q\x00" + b"(h\x00h\x00lq\x00" * 60 + b"e"
BOMBS = {
    "a place of the memo: 4.3 GB in 7 bytes": b"Nr\xff\xff\xff\x0f.",
    "the same as text": b"Np268435455\n.",
    "bytes: 4 GB": b"B\xff\xff\xff\xff.",
    "bytes: 1 TB": b"\x8e" + (2**40).to_bytes(8, "little") + b".",
    "a frame: 1 TB": b"\x80\x04\x95" + (2**40).to_bytes(8, "little") + b"N.",
    "a tuple of tuples as a key": b"})" + b"2\x86" * 60 + b"Ns.",
    "the same by references": b"](" + b")q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"e}h\x00Ns.",
    "behind BUILD": b"](" + b")q\x00" + b"h\x00h\x00\x86Nbq\x00" * 60 + b"e}h\x00Ns.",
    "behind APPENDS": b"](" + b")q\x00" + b"h\x00h\x00\x86(eq\x00" * 60 + b"e}h\x00Ns.",
    "behind POP": b"](" + b")q\x00" + b"h\x00h\x00\x86N0q\x00" * 60 + b"e}h\x00Ns.",
    "behind PUT": b"]()q\x00)q\x00\x94" + b"h\x01h\x01\x86q\x01" * 60 + b"e}h\x01Ns.",
    "a set of tuples": b"\x80\x04\x8f(" + b")2\x86" + b"2\x86" * 60 + b"\x90.",
    "bytes again and again: 10 GB": b"c_codecs\nencode\nq\x00X\x40\x42\x0f\x00" + b"a" * 10**6
    + b"q\x01](" + b"h\x00h\x01\x85R" * 10_000 + b"e.",
    "lists of lists as the name of a type": LISTS + b"cnumpy.core.multiarray\n_reconstruct\n)R("
    b"I1\n(tcnumpy\ndtype\n(h\x00tRI0\nS'a'\ntb.",
}  # fmt: skip
READ_ALL = """
import resource, sys
from bitcycle_lab.data.archive import as_array, read_pickle
from pathlib import Path
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 2**28
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[1:]:
    try:
        as_array(read_pickle(Path(path)))
    except ValueError as error:
        assert "MemoryError" not in str(error), path
        print(error)
"""


def test_a_pickle_that_would_take_all_memory_or_time_is_refused(tmp_path):
    paths = [tmp_path / str(number) for number, _ in enumerate(BOMBS)]
    for path, content in zip(paths, BOMBS.values(), strict=True):
        path.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, *map(str, paths)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == len(BOMBS), done.stdout


def test_a_pickle_with_too_many_opcodes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_OPCODES", 1000)
    path = tmp_path / "many"
    path.write_bytes(pickle.dumps([[] for _ in range(300)]))
    assert len(read_pickle(path)) == 300
    path.write_bytes(pickle.dumps([[] for _ in range(600)]))
    with pytest.raises(ValueError, match="1,000"):
        read_pickle(path)
