"""Read the pickles that datasets come in without running anything that is in them.

A pickle is a program: it may call whatever it can name. Here it can name only stand-ins that
record what they are given. Not even numpy's own reconstruction is called (a forged dtype can make
it read arbitrary memory): arrays are built afterwards from checked shape, type and bytes.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PLAIN_TYPES = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}


class ForbiddenPickleError(ValueError):
    """The pickle names something that data does not need."""


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class PickledType:
    """A recorded numpy dtype: plain numbers only."""

    def __init__(self, code: object, *_flags: object) -> None:
        self.code = _text(code).lstrip("<>|=")
        self.order = "<"
        if self.code not in _PLAIN_TYPES:
            raise ForbiddenPickleError(f"array of type {_text(code)!r}; plain numbers only")

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self.order = ">" if _text(state[1]) == ">" else "<"

    def to_numpy(self) -> np.dtype[Any]:
        """The real dtype."""
        return np.dtype(self.order + self.code)


class PickledArray:
    """A recorded numpy array: shape, type and bytes, not yet believed."""

    def __init__(self, *_initial: object) -> None:
        self.state: tuple[Any, ...] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def to_numpy(self) -> NDArray[Any]:
        """The array, if the number of bytes is what shape and type say."""
        if self.state is None or len(self.state) != 5:
            raise ValueError("an array without contents")
        _version, shape, kind, is_fortran, content = self.state
        if isinstance(content, str):  # a byte string of Python 2 in a re-saved file
            content = content.encode("latin1")
        if not isinstance(kind, PickledType) or not isinstance(content, bytes | bytearray):
            raise ValueError("an array of something else than plain numbers")
        if not isinstance(shape, tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(f"an array of shape {shape!r}")
        dtype = kind.to_numpy()
        if prod(shape) * dtype.itemsize != len(content):
            raise ValueError(f"an array of shape {shape} and type {dtype} in {len(content)} bytes")
        flat = np.frombuffer(content, dtype)
        return flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)


class PickledSparse:
    """A recorded scipy compressed-sparse-row matrix."""

    def __init__(self, *_initial: object) -> None:
        self.state: dict[str, Any] = {}

    def __setstate__(self, state: dict[object, Any]) -> None:
        self.state = {_text(name): value for name, value in state.items()}

    def to_numpy(self) -> NDArray[np.float32]:
        """The dense float32 matrix, if rows and columns are inside the shape."""
        try:
            num_rows, num_columns = (int(n) for n in self.state["_shape"])
            parts = (self.state[name] for name in ("data", "indices", "indptr"))
            values, columns, row_starts = (as_array(part) for part in parts)
        except (KeyError, TypeError) as error:
            raise ValueError(f"an incomplete sparse matrix ({error!r})") from None
        lengths = np.diff(row_starts)
        if (
            row_starts.shape != (num_rows + 1,)
            or row_starts[0] != 0
            or (lengths < 0).any()
            or not (row_starts[-1] == len(columns) == len(values))
            or (len(columns) and not (columns.min() >= 0 and columns.max() < num_columns))
        ):
            raise ValueError("a sparse matrix whose rows or columns are outside its shape")
        try:
            dense = np.zeros((num_rows, num_columns), np.float32)
        except MemoryError:
            raise ValueError(f"a sparse matrix of {num_rows} x {num_columns}") from None
        np.add.at(dense, (np.repeat(np.arange(num_rows), lengths), columns), values)
        return dense


class _Function:
    """A stand-in for a function; a pickle can call it and cannot change it."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, *args: object) -> object:
        return self._call(*args)

    def __setstate__(self, state: object) -> None:
        raise ForbiddenPickleError("a change to a function")


def _encode(text: object, encoding: object = "latin1") -> bytes:
    if not isinstance(text, str) or _text(encoding) not in {"latin1", "latin-1"}:
        raise ForbiddenPickleError("a text encoding other than latin1")
    return text.encode("latin1")


def _empty_bytes(*args: object) -> bytes:
    if args:  # bytes(n) would allocate n
        raise ForbiddenPickleError("bytes made from something")
    return b""


def _from_buffer(buffer: object, kind: object, shape: object, order: object) -> PickledArray:
    array = PickledArray()
    array.state = (1, shape, kind, _text(order) == "F", buffer)
    return array


def _allowed() -> dict[tuple[str, str], object]:
    names: dict[tuple[str, str], object] = {
        ("numpy", "ndarray"): PickledArray,
        ("numpy", "dtype"): PickledType,
        ("_codecs", "encode"): _Function(_encode),
        ("collections", "defaultdict"): defaultdict,
    }
    for core in ("numpy.core", "numpy._core"):  # numpy 1 and numpy 2
        names[f"{core}.multiarray", "_reconstruct"] = PickledArray
        names[f"{core}.numeric", "_frombuffer"] = _Function(_from_buffer)
    for builtins in ("builtins", "__builtin__"):
        names[builtins, "list"] = list
        names[builtins, "dict"] = dict
        names[builtins, "bytes"] = _Function(_empty_bytes)
    for module in ("scipy.sparse.csr", "scipy.sparse._csr"):
        for name in ("csr_matrix", "csr_array"):
            names[module, name] = PickledSparse
    return names


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(BytesIO(content), encoding="bytes")  # text of Python 2 stays bytes
        self._names = _allowed()

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            raise ForbiddenPickleError(
                f"the pickle asks for {module}.{name}, which no dataset needs; "
                "nothing of it was run. Do not trust this file"
            ) from None


def read_pickle(path: Path) -> object:
    """The object in the file: numbers, text, lists and dicts, arrays as recorded stand-ins.

    Raises ForbiddenPickleError for a pickle that names anything else, and ValueError for one that
    is cut off or is no pickle at all.
    """
    content = path.read_bytes()
    try:
        return _Reader(content).load()
    except ForbiddenPickleError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise ValueError(f"not a readable pickle ({type(error).__name__}: {error})") from None


def read_dict(path: Path) -> dict[str, Any]:
    """The dict in the file, with its keys as text."""
    content = read_pickle(path)
    if not isinstance(content, dict):
        raise ValueError(f"a pickled {type(content).__name__} where a dict is expected")
    return {_text(key): value for key, value in content.items()}


def as_array(value: object) -> NDArray[Any]:
    """A recorded array or sparse matrix as a real (dense) one."""
    if isinstance(value, PickledArray | PickledSparse):
        return value.to_numpy()
    raise ValueError(f"a {type(value).__name__} where an array is expected")
