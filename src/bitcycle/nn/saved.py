"""Operands saved for the backward pass: values or codes, with their grid.

A product saves five tensors of each operand. A whole product of the native library saves one, whose
bytes are the codes and their grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitcycle.kernels.choice import MAX_CODE_BITS
from bitcycle.native.layer import LayerProduct, OperandLayout, SavedOperand
from bitcycle.nn.input_cache import SharedCodes
from bitcycle.nn.plan import PACKED_BITS
from bitcycle.ops.packing import pack_codes, unpack_codes
from bitcycle.quantizers.base import Quantized

NUM_SAVED_TENSORS = 5  # of one operand
SavedTensors = tuple[Tensor | None, ...]  # values, codes, scale, offset, half


@dataclass(frozen=True)
class SavedFormat:
    """How `restore_operand` reads the tensors of a saved operand."""

    top: int
    shape: torch.Size | None = None  # of codes that were packed
    stride: tuple[int, ...] = ()


def save_operand(
    q: Quantized, x: Tensor | None = None, shared: SharedCodes | None = None
) -> tuple[SavedTensors, SavedFormat]:
    """The tensors to pass to `save_for_backward`, and how to read them.

    shared: where layers that read `x`, too, find its packed codes.
    """
    codes, saved_format = q.codes, SavedFormat(q.top)
    if codes is not None and q.top <= PACKED_BITS:
        saved_format = SavedFormat(q.top, codes.shape, codes.stride())
        found = None if x is None or shared is None else shared.cache.saved_of(x, shared.key)
        codes = pack_codes(codes) if found is None else found
        if x is not None and shared is not None:
            shared.cache.keep_saved(x, shared.key, codes)
    return (q.values, codes, q.scale, q.offset, q.half), saved_format


def restore_operand(tensors: SavedTensors, saved_format: SavedFormat) -> Quantized:
    """The operand as it was before `save_operand`."""
    values, codes, scale, offset, half = tensors
    shape = saved_format.shape
    if codes is not None and shape is not None:
        codes = unpack_codes(codes, shape, saved_format.stride)
    return Quantized(scale, offset, values, codes, half, saved_format.top)


def restore_operands(
    saved: SavedTensors, formats: tuple[SavedFormat, SavedFormat]
) -> tuple[Quantized, Quantized]:
    """Both operands of a product."""
    a, w = saved[:NUM_SAVED_TENSORS], saved[NUM_SAVED_TENSORS:]
    return restore_operand(a, formats[0]), restore_operand(w, formats[1])


def read_operands(
    product: LayerProduct, operands: OperandLayout, saved: tuple[Tensor | None, Tensor | None]
) -> tuple[Quantized, Quantized]:
    """Both operands, from the bytes that a whole product saved."""
    first, second = product.operands(operands, saved)
    return _read_operand(first), _read_operand(second)


def _read_operand(saved: SavedOperand | None) -> Quantized:
    if saved is None:
        return Quantized()
    shape, stride = torch.Size(saved.shape), saved.stride
    if saved.is_packed:
        codes = unpack_codes(saved.codes, shape, stride)
    else:
        codes = saved.codes.as_strided(shape, stride)
    codes = codes.contiguous() if saved.is_turned else codes
    scale, offset, half = saved.grid()
    top = PACKED_BITS if saved.is_packed else MAX_CODE_BITS
    return Quantized(scale, offset, codes=codes, half=half, top=top)
