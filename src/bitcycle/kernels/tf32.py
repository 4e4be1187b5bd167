"""Float32 products on a GPU, whatever torch's settings say about TF32.

TF32 keeps 10 of the 23 bits of a mantissa. cuDNN uses it for convolutions by default, and cuBLAS if
asked to. A grid of 8 bits with a float32 scale and offset does not survive it, so products of grid
values are computed without. A compiled graph follows torch's settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

Product = Literal["matmul", "conv"]

_read: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # from torch 2.9 on
_write: Any = getattr(torch._C, "_set_fp32_precision_setter", None)


def without_tf32(x: Tensor, product: Product) -> AbstractContextManager[None]:
    """Products of float32 tensors of this device are exact to float32 within the `with`."""
    if not x.is_cuda or torch.compiler.is_compiling() or not _uses_tf32(product):
        return nullcontext()
    return _float32_matmuls() if product == "matmul" else _float32_convolutions()


def _uses_tf32(product: Product) -> bool:
    if _read is not None:
        return bool(_read("cuda", product) == "tf32")
    read = torch._C._get_cublas_allow_tf32
    return bool(read() if product == "matmul" else torch._C._get_cudnn_allow_tf32())


@contextmanager
def _float32_matmuls() -> Iterator[None]:
    try:
        level = torch.get_float32_matmul_precision()
    except RuntimeError:  # only `fp32_precision` was set, and torch refuses to mix both settings
        level = None
    try:
        if level is None:
            _write("cuda", "matmul", "ieee")
        else:
            torch.set_float32_matmul_precision("highest")
        yield
    finally:
        if level is None:
            _write("cuda", "matmul", "tf32")
        else:
            torch.set_float32_matmul_precision(level)


@contextmanager
def _float32_convolutions() -> Iterator[None]:
    try:
        if _write is None:
            torch._C._set_cudnn_allow_tf32(False)
        else:
            _write("cuda", "conv", "ieee")
        yield
    finally:
        if _write is None:
            torch._C._set_cudnn_allow_tf32(True)
        else:
            _write("cuda", "conv", "tf32")
