"""GPU kernels for a tensor, where the native library cannot read it.

Callers ask for the native library first: on the CPU that is all they ask. They compute the same in
plain torch where there is neither, and where a kernel returns None because it could not run.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from bitcycle.gpu import driver


def grids_for(x: Tensor, *dtypes: torch.dtype) -> Any:
    """`gpu.grids`, which has the functions of `native.encode`, or None."""
    return _kernels("grids") if driver.is_available(x, *dtypes) else None


def blocks_for(x: Tensor, *dtypes: torch.dtype) -> Any:
    """`gpu.blocks`, which has the functions of `native.formats`, or None."""
    return _kernels("blocks") if driver.is_available(x, *dtypes) else None


def scaled_for(x: Tensor, *dtypes: torch.dtype) -> Any:
    """`gpu.scaled`, or None."""
    return _kernels("scaled") if driver.is_available(x, *dtypes) else None


def can_multiply(*codes: Tensor) -> bool:
    """Whether products of these codes run on a GPU; in a compiled graph, any on a CUDA device."""
    if torch.compiler.is_compiling():
        return all(each.is_cuda for each in codes) and _is_ready()
    return all(driver.is_available(each, torch.uint8) for each in codes)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_ready() -> bool:
    return driver.is_ready()


@functools.cache
def _kernels(name: str) -> Any:
    # not imported with this file: they need Triton
    return importlib.import_module(f"bitcycle.gpu.{name}")
