"""Which fused code can compute on a tensor: the native library, GPU kernels, or none.

Callers compute the same in plain torch where there is none, and where a GPU kernel returns None
because it could not run.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from bitcycle.gpu import driver
from bitcycle.native import encode, formats


def encoder_for(x: Tensor, *dtypes: torch.dtype) -> Any:
    """`native.encode`, `gpu.grids` or None, for a tensor of one of these dtypes."""
    if x.is_cpu and encode.is_available(x, *dtypes):
        return encode
    return _kernels("grids") if driver.is_available(x, *dtypes) else None


def formats_for(x: Tensor, *dtypes: torch.dtype) -> Any:
    """`native.formats`, `gpu.blocks` or None, for a tensor of one of these dtypes."""
    if x.is_cpu and formats.is_available(x, *dtypes):
        return formats
    return _kernels("blocks") if driver.is_available(x, *dtypes) else None


@functools.cache
def _kernels(name: str) -> Any:
    # not imported with this file: they need Triton
    return importlib.import_module(f"bitcycle.gpu.{name}")
