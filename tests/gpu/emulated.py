"""An emulated CUDA device for the tests, loaded before torch: `pytest -p tests.gpu.emulated`.

With a CUDA build of torch it does nothing, and the tests run on the real device.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SOURCE = Path(__file__).with_name("emulated.cpp")
FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-w")
NAMES = ("launches", "uploads", "reads", "waits", "bytes")
PRODUCTS = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "scaled_mm"}
)


@dataclass
class Counts:
    """What the device did.

    uploads, reads: transfers from and to the host. waits: those at which the host waits for the
    device. bytes: what launches read and wrote. operations: launches and bytes by operator of torch
    and by Triton kernel, as "triton::encode".
    """

    launches: int = 0
    uploads: int = 0
    reads: int = 0
    waits: int = 0
    bytes: int = 0
    operations: dict[str, tuple[int, int]] = field(default_factory=dict)

    def without_products(self) -> tuple[int, int]:
        """Launches and bytes of all operators but matrix products and convolutions."""
        others = [each for name, each in self.operations.items() if name not in PRODUCTS]
        return sum(n for n, _ in others), sum(size for _, size in others)


def load() -> ctypes.CDLL | None:
    """Compile the device unless that was done, and make it torch's; None with a CUDA build."""
    assert "torch" not in sys.modules, "the emulated device must be loaded before torch"
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent
    version = runpy.run_path(str(folder / "version.py"))
    if version["cuda"] is not None or version.get("hip") is not None:
        return None
    path = _compile(folder, version["__version__"])
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(folder / "lib" / name), ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    library.emulated_operations.restype = ctypes.c_size_t
    _complete_torch()
    _complete_products(library)
    if importlib.util.find_spec("triton") is not None:
        os.environ["TRITON_INTERPRET"] = "1"  # there is nothing to compile for
        _complete_triton(library)
    return library


def _compile(torch_folder: Path, version: str) -> Path:
    """The shared library, from a folder of temporary files."""
    digest = hashlib.sha256(" ".join((version, *FLAGS)).encode() + SOURCE.read_bytes()).hexdigest()
    cache = Path(tempfile.gettempdir(), f"bitcycle-emulated-{os.getuid()}")
    cache.mkdir(mode=0o700, exist_ok=True)
    path = cache / f"{version}-{digest[:16]}.so"
    if path.exists():
        return path
    include, lib = torch_folder / "include", torch_folder / "lib"
    folders = [f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", f"-L{lib}"]
    part = path.with_suffix(f".{os.getpid()}.tmp")
    libraries = ["-ltorch_cpu", "-lc10", f"-Wl,-rpath,{lib}"]
    compiler = os.environ.get("CXX", "c++")
    subprocess.run(
        [compiler, *FLAGS, *folders, str(SOURCE), *libraries, "-o", str(part)], check=True
    )
    part.replace(path)  # whole or not at all: several processes may compile
    return path


def _complete_torch() -> None:
    """Replace what of `torch.cuda` a CPU build does not have."""
    import torch
    import torch.cuda

    properties = SimpleNamespace(
        name="emulated", major=8, minor=0, total_memory=1 << 34, multi_processor_count=108
    )
    given: dict[str, Any] = {
        "_initialized": True,
        "default_generators": (torch.default_generator,),
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (8, 0),
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: False,
    }
    for name, value in given.items():
        for module in (torch.cuda, torch.cuda.random):
            setattr(module, name, value)

    make_storage = torch.UntypedStorage.__new__

    def new_storage(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            own = {} if device is None else {"device": device}
            return make_storage(cls, *args, **own, **kwargs)
        size = args[0] if args else 0
        return torch.empty(size, dtype=torch.uint8, device="cuda").untyped_storage()

    torch.UntypedStorage.__new__ = new_storage  # type: ignore[method-assign, assignment]


def _complete_products(library: ctypes.CDLL) -> None:
    """Give the device a `scaled_mm`, one launch; the host's has no MX and no NVFP4."""
    import torch
    from torch import Tensor

    def multiply(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
        from .scaled_mm import scaled_mm

        out = scaled_mm(a, b, *rest)
        tensors = [a, b, out, *rest[0], *rest[3]]
        size = sum(each.numel() * each.element_size() for each in tensors)
        library.emulated_launch(b"scaled_mm", ctypes.c_int64(size))
        return out

    global _operators  # kept: a library that is collected takes its operators along
    _operators = torch.library.Library("aten", "IMPL")
    _operators.impl("_scaled_mm_v2", multiply, "CUDA")


_operators: Any = None


def _complete_triton(library: ctypes.CDLL) -> None:
    """Let interpreted kernels work in the device's memory, which is the host's; one launch each.

    Its bytes are those of its tensor arguments, as if it read or wrote each of them once. Kernels
    take no tensor of the host, as compiled ones.
    """
    import numpy
    from torch import Tensor
    from triton.runtime.interpreter import GridExecutor

    copy_in, copy_out = GridExecutor._init_args_hst, GridExecutor._restore_args_dev
    run = GridExecutor.__call__

    def enter(self: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        if not any(each.is_cuda for each in tensors):
            copied: tuple[Any, dict[str, Any]] = copy_in(self, args, kwargs)
            return copied
        if not all(each.is_cuda for each in tensors):
            raise ValueError("a Triton kernel cannot access a tensor of the host (emulated)")
        sizes = {each.data_ptr(): each.numel() * each.element_size() for each in tensors}
        name = self.fn.__name__.removeprefix("_")
        if name in _failing:
            raise _failing[name]
        library.emulated_launch(f"triton::{name}".encode(), ctypes.c_int64(sum(sizes.values())))
        return args, kwargs

    def leave(self: Any, args: Any, taken: Any, kwargs: Any, taken_kwargs: Any) -> None:
        if taken is not args:
            copy_out(self, args, taken, kwargs, taken_kwargs)

    def silently(self: Any, *args: Any, **kwargs: Any) -> None:
        with numpy.errstate(all="ignore"):  # a device divides by 0 without a word
            run(self, *args, **kwargs)

    GridExecutor._init_args_hst, GridExecutor._restore_args_dev = enter, leave
    GridExecutor.__call__ = silently


_failing: dict[str, Exception] = {}  # by kernel
_LIBRARY = load()


def is_emulated() -> bool:
    """Whether the device is the emulated one, which counts."""
    return _LIBRARY is not None


@contextmanager
def failing(kernel: str, error: Exception) -> Iterator[None]:
    """Let every launch of a Triton kernel raise an error within the `with`."""
    _failing[kernel] = error
    try:
        yield
    finally:
        del _failing[kernel]


@contextmanager
def counted() -> Iterator[Counts]:
    """What the device does within the `with`; all zeros on a real one."""
    counts, before = Counts(), _read()
    try:
        yield counts
    finally:
        after = _read()
        for name in NAMES:
            setattr(counts, name, getattr(after, name) - getattr(before, name))
        for name, (launches, size) in after.operations.items():
            earlier = before.operations.get(name, (0, 0))
            if launches > earlier[0]:
                counts.operations[name] = launches - earlier[0], size - earlier[1]


def _read() -> Counts:
    """The counts since the device was loaded."""
    if _LIBRARY is None:
        return Counts()
    numbers = (ctypes.c_int64 * len(NAMES))()
    _LIBRARY.emulated_counts(numbers)
    text = ctypes.create_string_buffer(1 << 20)
    size = _LIBRARY.emulated_operations(text, ctypes.c_size_t(len(text)))
    rows = [line.split() for line in text.raw[:size].decode().splitlines()]
    operations = {name.removeprefix("aten::"): (int(n), int(b)) for name, n, b in rows}
    return Counts(**dict(zip(NAMES, numbers, strict=True)), operations=operations)
