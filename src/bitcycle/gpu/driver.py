"""Whether Triton kernels can run on a tensor, and the one way to launch them.

The environment variable BITCYCLE_GPU=0 turns the kernels off. Triton is imported only for a tensor
that they could read: a machine without a GPU never loads it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from bitcycle.native.encode import PLAIN, count_modes, is_transforming, tracing_state
from bitcycle.warnings import BitcycleWarning

SWITCH = "BITCYCLE_GPU"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)  # that the kernels read
NUM_WARPS = 4

T = TypeVar("T")

_reads_cpu_tensors = False  # set by tests, which run Triton's interpreter
_failed: dict[str, str] = {}  # names of kernels, and why
num_launches = 0  # in this process


def is_available(x: Tensor, *dtypes: torch.dtype) -> bool:
    """Whether kernels can read this tensor: on a GPU, strided, of one of these dtypes.

    As for the native library, not where torch must see its own operations: under a dispatch mode
    or a function transform, and where autograd records or a graph is traced.
    """
    if not (x.is_cuda or (_reads_cpu_tensors and x.is_cpu)) or torch.compiler.is_compiling():
        return False
    return (
        x.dtype in dtypes
        and type(x) in PLAIN
        and x.layout is torch.strided
        and not (x.requires_grad and torch.is_grad_enabled())
        and not x.is_neg()
        and not count_modes()
        and not is_transforming()
        and tracing_state() is None
        and is_ready()
    )


@functools.cache
def is_ready() -> bool:
    """Whether Triton is there and drives a device, or interprets kernels."""
    return missing_reason() is None


def missing_reason() -> str | None:
    """Why kernels cannot run; None if they can."""
    if os.environ.get(SWITCH) == "0":
        return f"switched off by {SWITCH}=0"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if is_interpreted():
        return None
    try:
        from triton.runtime import driver

        return None if driver.active is not None else "Triton has no driver of a device"
    except Exception as error:  # without an active driver, or with two, Triton raises an error
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return f"Triton drives no device: {reason}"


@functools.cache
def device_class(index: int) -> str:
    """The compute capability of a GPU, such as "sm_90", or AMD's name of its architecture."""
    if torch.version.hip is not None:
        name: str = torch.cuda.get_device_properties(index).gcnArchName
        return name.split(":")[0]
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"


def failures() -> dict[str, str]:
    """The kernels that failed to compile or to start in this process, and why."""
    return dict(_failed)


def is_interpreted() -> bool:
    """Whether Triton interprets kernels instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def launch(kernel: Any, programs: int, first: Tensor, *arguments: Any, **constants: Any) -> bool:
    """Run a kernel on the device of its first argument; False if it cannot run.

    A kernel that failed to compile or to start is not tried again. The caller then computes the
    same in plain torch, and uses nothing that the kernel may have written. Too little memory of the
    device is no failure of a kernel and is raised, as is an error after which the device computes
    nothing more, whichever kernel it is from: it is noticed late. (A kernel that needs more shared
    memory than the device has fails to start.)
    """
    global num_launches
    if any(isinstance(each, Tensor) and each.device != first.device for each in arguments):
        return False  # torch also takes a number from the CPU
    if programs == 0:
        return True

    def start() -> bool:
        # a fused multiply-add rounds once where the plain functions round twice
        options = {"num_warps": NUM_WARPS, "enable_fp_fusion": False} | constants
        kernel[(programs,)](first, *arguments, **options)
        return True

    is_done = attempt(kernel.__name__.removeprefix("_"), first, start) is not None
    num_launches += is_done
    return is_done


def attempt(name: str, on: Tensor, call: Callable[[], T]) -> T | None:
    """The result of a call that runs a kernel on the device of a tensor; None if it fails.

    The rules are those of `launch`. name: of the kernel, in warnings and in the state of a run.
    """
    if name in _failed:
        return None
    try:
        with _on_device(on):
            return call()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if on.is_cuda and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize(on.device)  # raises if the device is lost
        _failed[name] = reason = (str(error) or type(error).__name__).splitlines()[0]
        warnings.warn(
            f"the GPU kernel {name} failed: {reason}; the run goes on without it; "
            f"{SWITCH}=0 turns the kernels off",
            BitcycleWarning,
            stacklevel=3,
        )
        return None


def leave_out(names: Iterable[str]) -> None:
    """Do not try these kernels, as if they had failed."""
    _failed.update(dict.fromkeys(names, "failed earlier in this run"))


def _on_device(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    if not x.is_cuda or is_interpreted():
        return contextlib.nullcontext()
    return torch.cuda.device(x.device)
