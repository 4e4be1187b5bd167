"""Read untrusted dataset files safely: gzip with a size limit, and pickles of arrays only.

`read_pickle` never imports or calls what a pickle names: it knows numpy arrays, scipy's sparse
matrices and plain Python data, and records arrays until `as_array` checks and builds them.
"""

from __future__ import annotations

import gzip
import io
import operator
import pickle
import pickletools
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

GROWTH = 100  # limit of the compression ratio; numbers and images reach 10, gzip 1000
FLOOR = 2**26  # bytes that any file may unpack to, whatever its size
MAX_PICKLE_BYTES = 2**28  # the largest, CIFAR-100's training images, has 155 MB
MAX_OPCODES = 2**22  # of a pickle; CIFAR-100's training images have 250 thousand
MAX_ARGUMENTS = 8  # of a class; numpy.ndarray has 4
MAX_VALUES = 2**28  # of a dense matrix: 1 GB
_PLAIN_TYPES = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}


def max_unpacked_bytes(path: Path) -> int:
    """The largest size to which a file may unpack; its own size if it is not gzipped."""
    size = path.stat().st_size
    return size if path.suffix != ".gz" else FLOOR + GROWTH * size


def open_unpacked(path: Path) -> BinaryIO:
    """Open a plain or gzipped file; reading beyond `max_unpacked_bytes` raises ValueError."""
    if path.suffix != ".gz":
        return path.open("rb")
    return cast(BinaryIO, _BoundedGzip(path))


class _BoundedGzip(gzip.GzipFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._max = max_unpacked_bytes(path)

    def read(self, size: int | None = -1) -> bytes:
        """Read, and raise ValueError beyond the limit."""
        room = self._max - self.tell() + 1
        return self._checked(super().read(room if size is None or size < 0 else min(size, room)))

    def read1(self, size: int = -1) -> bytes:
        """Read what is buffered, and raise ValueError beyond the limit."""
        return self._checked(super().read1(size))

    def _checked(self, content: bytes) -> bytes:
        if self.tell() > self._max:
            raise ValueError(f"unpacks to more than {self._max:,} bytes")
        return content


def read_pickle(path: Path) -> object:
    """The object in a pickle; pass its arrays and matrices to `as_array`."""
    size = path.stat().st_size
    if size > MAX_PICKLE_BYTES:
        raise ValueError(f"{size:,} bytes; a pickle of a dataset has at most {MAX_PICKLE_BYTES:,}")
    try:
        content = path.read_bytes()
        _check_opcodes(content)
        return _Unpickler(content).load()
    except Exception as error:  # a damaged pickle can fail in any way
        reason = str(error)[:200]  # which may quote the file
        raise ValueError(f"not a readable pickle ({type(error).__name__}: {reason})") from None


_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_REFUSED = {"DUP", "POP", "POP_MARK", "EMPTY_SET", "FROZENSET"}
_NO_TUPLE = {  # what they leave on the stack has no tuple inside that could be hashed
    each.name
    for each in pickletools.opcodes
    if not each.stack_before and [kind.name for kind in each.stack_after] not in ([], ["any"])
} | {"LIST", "DICT", "GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "INST", "OBJ"}


def _check_opcodes(content: bytes) -> None:
    """Raise for opcodes that would take memory or time without measure. Loads nothing.

    The unpickler makes room for the largest number of its memo: it may not exceed the opcodes
    before it, which make the objects. A tuple of two references to a tuple of two references takes
    2^n steps to hash. No pickle of data refers to a tuple again, or has a set.
    """
    memo: set[int] = set()
    tuples: set[int] = set()
    before = ""  # the last opcode that changed the stack
    for number, (opcode, argument, _position) in enumerate(pickletools.genops(content)):
        name = opcode.name
        if number >= MAX_OPCODES:
            raise pickle.UnpicklingError(f"it has more than {MAX_OPCODES:,} opcodes")
        if name in _REFUSED:
            raise pickle.UnpicklingError(f"it has the opcode {name}, which no dataset needs")
        if name in _PUTS:
            place = len(memo) if argument is None else int(argument)
            if place > number:
                raise pickle.UnpicklingError(f"it memoizes object {place:,} of {number:,}")
            memo.add(place)
            (tuples.discard if before in _NO_TUPLE else tuples.add)(place)
        elif name in _GETS and int(argument or 0) in tuples:
            raise pickle.UnpicklingError("it refers to a tuple again")
        elif name not in ("PROTO", "FRAME"):
            before = name


def read_dict(path: Path) -> dict[str, Any]:
    """The dict in a pickle, with keys as text."""
    content = read_pickle(path)
    if not isinstance(content, dict):
        raise ValueError(f"a pickled {type(content).__name__} where a dict is expected")
    return {_text(key): value for key, value in content.items() if isinstance(key, str | bytes)}


def as_array(value: object) -> NDArray[Any]:
    """Build an array, or a dense float32 matrix from a sparse one, of `read_pickle`."""
    if not isinstance(value, _Array | _Sparse):
        raise ValueError(f"a {type(value).__name__} where an array is expected")
    try:
        return _dense(value) if isinstance(value, _Sparse) else _array(value)
    except Exception as error:  # damage can fail in any way here too
        raise ValueError(f"a damaged array ({error})") from None


def _array(record: _Array) -> NDArray[Any]:
    if record.state is None:  # protocol 5
        content, kind, shape, order = record.args
        is_fortran = _text(order) == "F"
    else:
        _version, shape, kind, is_fortran, content = record.state
    if isinstance(content, str):  # a byte string of Python 2 in a re-saved file
        content = content.encode("latin1")
    code = _text(kind.args[0]).lstrip("<>|=")
    if not isinstance(kind, _Type) or code not in _PLAIN_TYPES:
        raise ValueError(f"type {code!r}; plain numbers only")
    order = ">" if kind.state is not None and _text(kind.state[1]) == ">" else "<"
    flat = np.frombuffer(content, np.dtype(order + code))
    return flat.reshape(shape, order="F" if is_fortran else "C")


def _dense(record: _Sparse) -> NDArray[np.float32]:
    state = {_text(name): value for name, value in record.state.items()}
    num_rows, num_columns = map(operator.index, state["_shape"])
    values, columns, row_starts = (_array(state[name]) for name in ("data", "indices", "indptr"))
    if row_starts.shape != (num_rows + 1,) or (row_starts[1:] < row_starts[:-1]).any():
        raise ValueError(f"row starts that do not increase over {num_rows} rows")
    if row_starts[0] != 0 or not values.shape == columns.shape == (row_starts[-1],):
        raise ValueError(f"{values.shape} values, {columns.shape} columns, {row_starts[-1]} places")
    if num_rows * num_columns > MAX_VALUES or (len(columns) and columns.min() < 0):
        raise ValueError(f"a sparse matrix of {num_rows:,} x {num_columns:,}, or a column below 0")
    rows = np.repeat(np.arange(num_rows), np.diff(row_starts))
    dense = np.zeros((num_rows, num_columns), np.float32)
    np.add.at(dense, (rows, columns), values)
    return dense


def _text(value: object) -> str:
    if not isinstance(value, str | bytes):  # lists of lists of lists may be endless as a text
        raise ValueError(f"a {type(value).__name__} where a text is expected")
    return value.decode("latin1") if isinstance(value, bytes) else value


class _Fixed(type):
    """Metaclass of classes that a pickle cannot change."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise pickle.UnpicklingError(f"it sets {name!r} of a class")


class _Record(metaclass=_Fixed):
    """Records the arguments and the state that a pickle passes to a class."""

    args: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *args: object) -> None:
        if len(args) > MAX_ARGUMENTS:
            raise pickle.UnpicklingError(f"it passes {len(args):,} arguments to a class")
        self.args = args

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Type(_Record):
    """numpy.dtype"""


class _Array(_Record):
    """numpy.ndarray and the functions that make one."""


class _Sparse(_Record):
    """scipy.sparse.csr_matrix"""


class _Dict(metaclass=_Fixed):
    """A defaultdict, whose factory is not needed."""

    def __new__(cls, *_factory: object) -> dict[object, object]:  # type: ignore[misc]
        return {}


_ALLOWED: dict[str, type] = {
    "numpy.ndarray": _Array,
    "numpy.dtype": _Type,
    "numpy.core.multiarray._reconstruct": _Array,  # numpy 1
    "numpy._core.multiarray._reconstruct": _Array,  # numpy 2
    "numpy.core.numeric._frombuffer": _Array,
    "numpy._core.numeric._frombuffer": _Array,
    "scipy.sparse.csr.csr_matrix": _Sparse,
    "scipy.sparse._csr.csr_matrix": _Sparse,
    "scipy.sparse._csr.csr_array": _Sparse,
    "collections.defaultdict": _Dict,
    "__builtin__.list": _Record,  # the factory
    "builtins.list": _Record,
}


def _bytes_type(num_bytes: int) -> type:
    """The class of bytes that Python 3 wrote for a protocol of Python 2.

    num_bytes: of the file, which has the text of each.
    """
    left = num_bytes

    class Bytes(metaclass=_Fixed):
        def __new__(cls, text: str = "", encoding: object = "latin1") -> bytes:  # type: ignore[misc]
            nonlocal left
            left -= len(text)
            if left < 0:
                raise pickle.UnpicklingError(f"it repeats bytes beyond its own {num_bytes:,}")
            return text.encode("latin1")

    return Bytes


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")  # text of Python 2 stays bytes
        self._bytes = _bytes_type(len(content))

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in ("_codecs.encode", "__builtin__.bytes"):
            return self._bytes
        try:
            return _ALLOWED[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}; nothing was executed"
            ) from None
