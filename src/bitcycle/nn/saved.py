"""What a product keeps for its backward pass: codes, not floats; two to a byte if they fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bitcycle.nn.seen import LastSeen
from bitcycle.ops.layout import flat, like
from bitcycle.ops.packing import pack_nibbles, unpack_nibbles
from bitcycle.quantizers.base import Quantized

NUM_TENSORS = 5
Tensors = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Form:
    """How to make the operand again from its tensors."""

    top: int
    shape: torch.Size | None = None  # of codes that were packed
    stride: tuple[int, ...] = ()
    dtype: torch.dtype = torch.uint8

    @property
    def is_packed(self) -> bool:
        """Whether two codes share a byte."""
        return self.shape is not None


def to_save(q: Quantized) -> tuple[Tensors, Form]:
    """The tensors to hand to `save_for_backward`, and the rest."""
    codes, form = q.codes, Form(q.top)
    if codes is not None and q.top <= 4:
        form = Form(q.top, codes.shape, codes.stride(), codes.dtype)
        is_compiling = torch.compiler.is_compiling()
        codes = pack_nibbles(codes.reshape(-1) if is_compiling else flat(codes))
    return (q.values, codes, q.scale, q.offset, q.half), form


def shared_codes(tensors: Tensors, seen: LastSeen, x: Tensor, key: Any) -> Tensors:
    """The same with the packed codes that another layer keeps of the same input, if one does."""
    values, codes, scale, offset, half = tensors
    assert codes is not None
    return values, seen.share(x, key, codes), scale, offset, half


def restore(tensors: Tensors, form: Form) -> Quantized:
    """The operand as it was saved."""
    values, codes, scale, offset, half = tensors
    if codes is not None and form.shape is not None:
        numbers = unpack_nibbles(codes, form.shape.numel(), form.dtype)
        if torch.compiler.is_compiling():
            codes = numbers.view(form.shape)
        else:
            model = torch.empty_strided(form.shape, form.stride, device="meta")
            codes = like(numbers, model)
    return Quantized(scale, offset, values, codes, half, form.top)
