"""Read the pickles that datasets come in without running anything that is in them.

A pickle is a program: it may call whatever it can name. Here it can name only stand-ins that
record what they are given. Not even numpy's own reconstruction is called (a forged dtype can make
it read arbitrary memory): arrays are built afterwards from checked shape, type and bytes. Nothing
is made room for because a number in the file says so.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PLAIN_TYPES = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}
MOST_TUPLES = 10_000  # an array has a few; nested without end they overflow the stack
MOST_VALUES = 2**28  # of a dense matrix: 1 GB


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

    state: object = None

    def __init__(self, *_initial: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        self.state = state

    def to_numpy(self) -> NDArray[Any]:
        """The array, if the number of bytes is what shape and type say."""
        if not isinstance(self.state, tuple) or len(self.state) != 5:
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

    state: dict[str, Any]

    def __init__(self, *_initial: object) -> None:
        pass

    def __setstate__(self, state: dict[object, Any]) -> None:
        self.state = {_text(name): value for name, value in state.items()}

    def to_numpy(self) -> NDArray[np.float32]:
        """The dense float32 matrix, if rows and columns are inside the shape."""
        try:
            num_rows, num_columns = (int(n) for n in self.state["_shape"])
            parts = [self.state[name] for name in ("data", "indices", "indptr")]
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"an incomplete sparse matrix ({error!r})") from None
        if not all(isinstance(part, PickledArray) for part in parts):
            raise ValueError("a sparse matrix of something else than arrays")
        values, columns, row_starts = (part.to_numpy() for part in parts)
        if any(part.ndim != 1 for part in (values, columns, row_starts)) or any(
            part.dtype.kind != "i" for part in (columns, row_starts)
        ):
            raise ValueError("a sparse matrix whose rows or columns are no whole numbers")
        lengths = np.diff(row_starts)
        if (
            num_rows < 1
            or row_starts.shape != (num_rows + 1,)
            or row_starts[0] != 0
            or (lengths < 0).any()
            or not (row_starts[-1] == len(columns) == len(values))
            or (len(columns) and not (columns.min() >= 0 and columns.max() < num_columns))
        ):
            raise ValueError("a sparse matrix whose rows or columns are outside its shape")
        if num_rows * num_columns > MOST_VALUES:
            raise ValueError(f"a sparse matrix of {num_rows:,} x {num_columns:,}, which is no data")
        dense = np.zeros((num_rows, num_columns), np.float32)
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


def _empty(kind: type) -> _Function:
    """Makes an empty one; made from something it could be as large as a number says."""

    def make(*args: object) -> object:
        if args:
            raise ForbiddenPickleError(f"{kind.__name__} made from something")
        return kind()

    return _Function(make)


def _default_dict(*factory: object) -> dict[object, object]:
    if len(factory) > 1:
        raise ForbiddenPickleError("a defaultdict made from something")
    return {}


def _from_buffer(buffer: object, kind: object, shape: object, order: object) -> PickledArray:
    array = PickledArray()
    array.state = (1, shape, kind, _text(order) == "F", buffer)
    return array


def _allowed() -> dict[tuple[str, str], object]:
    names: dict[tuple[str, str], object] = {
        ("numpy", "ndarray"): PickledArray,
        ("numpy", "dtype"): PickledType,
        ("collections", "defaultdict"): _Function(_default_dict),
    }
    for core in ("numpy.core", "numpy._core"):  # numpy 1 and numpy 2
        names[f"{core}.multiarray", "_reconstruct"] = PickledArray
        names[f"{core}.numeric", "_frombuffer"] = _Function(_from_buffer)
    for builtins in ("builtins", "__builtin__"):
        for kind in (list, dict, bytes):
            names[builtins, kind.__name__] = _empty(kind)
    for module in ("scipy.sparse.csr", "scipy.sparse._csr"):
        for name in ("csr_matrix", "csr_array"):
            names[module, name] = PickledSparse
    return names


class _Whole(BytesIO):
    """Bytes of which as many are read as were asked for, or none."""

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        if size is not None and len(content) < size:
            raise EOFError("cut off")
        return content

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not line.endswith(b"\n"):
            raise EOFError("cut off")
        return line


class _Reader(pickle._Unpickler):
    """The unpickler in Python: the one in C allocates its memo by an index that a file names."""

    dispatch = dict(pickle._Unpickler.dispatch)

    def __init__(self, content: bytes) -> None:
        super().__init__(_Whole(content), encoding="bytes")  # text of Python 2 stays bytes
        self._names = _allowed() | {("_codecs", "encode"): _Function(self._encode)}
        self._room = len(content)
        self._num_tuples = 0

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            raise ForbiddenPickleError(
                f"the pickle asks for {module}.{name}, which no dataset needs; "
                "nothing of it was run. Do not trust this file"
            ) from None

    def _encode(self, text: object, encoding: object = "latin1") -> bytes:
        if not isinstance(text, str) or _text(encoding) not in {"latin1", "latin-1"}:
            raise ForbiddenPickleError("a text encoding other than latin1")
        self._room -= len(text)
        if self._room < 0:
            raise ForbiddenPickleError("more bytes made from text than the file has")
        return text.encode("latin1")

    def _load_bytearray(self: Any) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(length)))  # as long as it is, not as it says

    dispatch[pickle.BYTEARRAY8[0]] = _load_bytearray


def _count_tuples(load: Callable[[Any], None]) -> Callable[[Any], None]:
    def counted(reader: Any) -> None:
        reader._num_tuples += 1
        if reader._num_tuples > MOST_TUPLES:
            raise ForbiddenPickleError(f"more than {MOST_TUPLES:,} tuples")
        load(reader)

    return counted


for _opcode in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3):
    _Reader.dispatch[_opcode[0]] = _count_tuples(_Reader.dispatch[_opcode[0]])


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
        reason = str(error)[:200]  # which may quote the file
        raise ValueError(f"not a readable pickle ({type(error).__name__}: {reason})") from None


def read_dict(path: Path) -> dict[str, Any]:
    """The dict in the file, with its keys as text."""
    content = read_pickle(path)
    if not isinstance(content, dict):
        raise ValueError(f"a pickled {type(content).__name__} where a dict is expected")
    return {_text(key): value for key, value in content.items() if isinstance(key, str | bytes)}


def as_array(value: object) -> NDArray[Any]:
    """A recorded array or sparse matrix as a real (dense) one."""
    if isinstance(value, PickledArray | PickledSparse):
        try:
            return value.to_numpy()
        except OverflowError as error:  # a dimension beyond any integer of numpy
            raise ValueError(f"an array whose shape cannot be ({error})") from None
    raise ValueError(f"a {type(value).__name__} where an array is expected")
