"""Convolutions with a kernel of 1, as products of pixels: those of a linear layer, from codes.

A pixel is a row with its channels. Of channels-last maps all pixels are one matrix, a view. Of
contiguous maps (N, C, P) each map is one, which the kernel reads and writes where it is:

    output       (N, P, in) x (out, in)     ->  (N, P, out), in memory (N, out, P)
    grad_input   (N, P, out) x (out, in)    ->  (N, P, in), in memory (N, in, P)
    grad_weight  (out, N P) x (in, N P)     ->  (out, in), summed over maps and pixels

A stride selects pixels, and grad_input is 0 at the others. Results have the memory layout of
torch's convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bitcycle.kernels.geometry import PointwiseGeometry, transposed
from bitcycle.kernels.simulate import FloatProducts
from bitcycle.ops.layout import memory_layout
from bitcycle.quantizers.base import Quantized

# x, y, bias, dtype, is_turned: whether the rows of x and of the result are the innermost in memory
MultiplyPixels = Callable[
    [Quantized, Quantized, Tensor | None, torch.dtype | None, bool], Tensor | None
]
MultiplyMaps = Callable[[Quantized, Quantized, torch.dtype | None], Tensor | None]


@dataclass(frozen=True)
class PointwiseProducts:
    """The products of pixels; float32 where scales do not allow them.

    multiply: x (..., K), y (N, K) -> x y^T (+ bias). multiply_maps: x (M, maps, P), y (N, maps, P)
    -> x y^T, summed over maps and P.
    """

    geometry: PointwiseGeometry
    multiply: MultiplyPixels
    multiply_maps: MultiplyMaps

    def output(
        self, a: Quantized, w: Quantized, bias: Tensor | None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Input x weight (+ bias); the weight may have a scale per output channel."""
        if not _are_codes(a, w):
            return FloatProducts(self.geometry).output(a, w, bias, dtype)
        pixels, is_turned = _pixels(self._select(a))
        output = self.multiply(pixels, _matrix(w), bias, dtype, is_turned)
        if output is None:
            return FloatProducts(self.geometry).output(a, w, bias, dtype)
        assert a.codes is not None
        size = self.geometry.output_size(a.codes.shape[2:], (1,) * self.geometry.num_dims)
        return _as_maps(output, size, is_turned)

    def grad_input(
        self, e: Quantized, w: Quantized, a_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Error x weight; the weight may have a scale per output or per input channel."""
        if not _are_codes(e, w):
            return FloatProducts(self.geometry).grad_input(e, w, a_shape, dtype)
        pixels, is_turned = _pixels(e)
        grad = self.multiply(pixels, transposed(_matrix(w)), None, dtype, is_turned)
        if grad is None:
            return FloatProducts(self.geometry).grad_input(e, w, a_shape, dtype)
        assert e.codes is not None
        grad = _as_maps(grad, e.codes.shape[2:], is_turned)
        if grad.shape == a_shape:
            return grad
        layout = memory_layout(e.codes)
        maps = torch.empty(a_shape, dtype=grad.dtype, device=grad.device, memory_format=layout)
        self._selected(maps.zero_()).copy_(grad)
        return maps

    def grad_weight(
        self, e: Quantized, a: Quantized, w_shape: torch.Size, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Error x input."""
        if not _are_codes(e, a):
            return FloatProducts(self.geometry).grad_weight(e, a, w_shape, dtype)
        grad = self.multiply_maps(_channels(e), _channels(self._select(a)), dtype)
        if grad is None:
            return FloatProducts(self.geometry).grad_weight(e, a, w_shape, dtype)
        return grad.view(w_shape)

    def _select(self, a: Quantized) -> Quantized:
        """The pixels that the kernel meets; channels-last maps stay so."""
        assert a.codes is not None
        codes, layout = self._selected(a.codes), memory_layout(a.codes)
        if layout != torch.contiguous_format:
            codes = codes.contiguous(memory_format=layout)
        return _with_codes(a, codes)

    def _selected(self, maps: Tensor) -> Tensor:
        """The same of any maps, as a view."""
        if set(self.geometry.stride) == {1}:
            return maps
        for dim, step in enumerate(self.geometry.stride, start=2):
            maps = maps[(slice(None),) * dim + (slice(None, None, step),)]
        return maps


def _are_codes(x: Quantized, y: Quantized) -> bool:
    """Whether both operands are codes, of which the first has one scale."""
    if x.codes is None or y.codes is None:
        return False
    assert x.scale is not None
    return x.scale.numel() == 1


def _pixels(q: Quantized) -> tuple[Quantized, bool]:
    """Maps (N, C, *space) as (..., C), and whether the channels are the outer ones in memory."""
    assert q.codes is not None
    is_single = q.codes.shape[2:].numel() == 1
    is_turned = memory_layout(q.codes) == torch.contiguous_format and not is_single
    codes = q.codes.flatten(2).mT if is_turned else q.codes.movedim(1, -1)
    return _with_codes(q, codes), is_turned


def _as_maps(pixels: Tensor, space: tuple[int, ...], is_turned: bool) -> Tensor:
    """The inverse of `_pixels`."""
    if is_turned:
        return pixels.mT.view(pixels.shape[0], pixels.shape[2], *space)
    return pixels.movedim(-1, 1)


def _channels(q: Quantized) -> Quantized:
    """Maps (N, C, *space) as (C, N, P)."""
    assert q.codes is not None
    return _with_codes(q, q.codes.flatten(2).transpose(0, 1))


def _matrix(w: Quantized) -> Quantized:
    """A weight (out, in, 1, ...) as (out, in), with its scales."""
    codes, scale, offset = (
        x.flatten(1) if x is not None and x.dim() > 2 else x for x in (w.codes, w.scale, w.offset)
    )
    return Quantized(scale, offset, codes=codes, half=w.half, top=w.top)


def _with_codes(q: Quantized, codes: Tensor) -> Quantized:
    return Quantized(q.scale, q.offset, codes=codes, half=q.half, top=q.top)
