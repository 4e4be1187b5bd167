"""The oracle: sbm products written out slowly, element by element of the kernel, in plain torch.

Shares nothing with the library: grids straight from the rule's text, convolutions as sums over
kernel positions, gradients as the transposes of those sums. Grids are float32 (so that ties fall
as they must), products float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

Axes = tuple[int, ...]


def grid(x: Tensor, bits: int | None, low: Tensor, high: Tensor) -> Tensor:
    """s = range / (2^b - 1); q = rint(clamp((x - min) / s, 0, 2^b - 1)); x^ = q * s + min."""
    if bits is None:
        return x
    levels = float(2**bits - 1)
    step = (high - low) / levels
    step[step == 0] = 1.0
    return torch.round(torch.clamp((x - low) / step, 0.0, levels)) * step + low


def per_tensor(x: Tensor, bits: int | None) -> Tensor:
    """The grid between the extremes of the whole tensor."""
    return grid(x, bits, x.min(), x.max())


def per_channel(w: Tensor, bits: int | None, groups: int = 0) -> Tensor:
    """A grid for every output channel: w[c], or of transposed weights (groups > 0) their column."""
    result = torch.empty_like(w)
    if not groups:
        for c in range(w.shape[0]):
            result[c] = per_tensor(w[c], bits)
        return result
    rows = w.shape[0] // groups
    for g, c in itertools.product(range(groups), range(w.shape[1])):
        block = slice(g * rows, (g + 1) * rows)
        result[block, c] = per_tensor(w[block, c], bits)
    return result


@dataclass
class Products:
    """What a layer computes for one input, weight, bias and arriving error."""

    output: Tensor
    grad_input: Tensor
    grad_weight: Tensor


def linear(a: Tensor, w: Tensor, bias: Tensor | None, e: Tensor) -> Products:
    """Products of operands that are on their grids already: a (..., in), w (out, in)."""
    a, w, e = a.double(), w.double(), e.double()
    output = torch.einsum("...i,oi->...o", a, w)
    grad_input = torch.einsum("...o,oi->...i", e, w)
    rows_e, rows_a = e.reshape(-1, w.shape[0]), a.reshape(-1, w.shape[1])
    grad_weight = torch.einsum("no,ni->oi", rows_e, rows_a)
    return Products(output if bias is None else output + bias.double(), grad_input, grad_weight)


def matmul(a: Tensor, b: Tensor, e: Tensor) -> Products:
    """a (..., M, K) x b (..., K, N) with broadcast batches, one matrix at a time."""
    a, b, e = a.double(), b.double(), e.double()
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    output = torch.zeros(*batch, a.shape[-2], b.shape[-1], dtype=torch.float64)
    grad_a, grad_b = torch.zeros_like(a), torch.zeros_like(b)
    for where in itertools.product(*(range(n) for n in batch)):
        at_a, at_b = _source(where, a.shape[:-2]), _source(where, b.shape[:-2])
        output[where] = a[at_a] @ b[at_b]
        grad_a[at_a] += e[where] @ b[at_b].T
        grad_b[at_b] += a[at_a].T @ e[where]
    return Products(output, grad_a, grad_b)


def _source(where: Axes, shape: torch.Size) -> Axes:
    """Where an operand with this batch shape is read for one element of the broadcast batch."""
    tail = where[len(where) - len(shape) :]
    return tuple(0 if n == 1 else i for i, n in zip(tail, shape, strict=True))


@dataclass(kw_only=True)
class Conv:
    """A (transposed) convolution; `before` and `after`: padding of each dimension's two ends."""

    stride: Axes
    before: Axes
    after: Axes
    dilation: Axes
    groups: int = 1
    mode: str = "zeros"
    transposed: bool = False
    output_padding: Axes = field(default=())

    def products(self, a: Tensor, w: Tensor, bias: Tensor | None, e: Tensor) -> Products:
        """Of operands on their grids: a (N, Cin, *), w as torch stores it, e (N, Cout, *)."""
        a, w, e = a.double(), w.double(), e.double()
        compute = self._transposed if self.transposed else self._direct
        result = compute(a, w, e)
        if bias is not None:
            result.output += bias.double().view(1, -1, *[1] * len(self.stride))
        return result

    def _taps(self, kernel: Axes, count: Axes) -> Iterator[tuple[Axes, tuple[slice, ...]]]:
        """Each kernel position with the `count` places it touches on the dense side."""
        for k in itertools.product(*(range(n) for n in kernel)):
            starts = [i * d for i, d in zip(k, self.dilation, strict=True)]
            yield (
                k,
                tuple(
                    slice(start, start + (n - 1) * s + 1, s)
                    for start, n, s in zip(starts, count, self.stride, strict=True)
                ),
            )

    def _direct(self, a: Tensor, w: Tensor, e: Tensor) -> Products:
        padded, sources = self._pad(a)
        grad_padded, grad_w = torch.zeros_like(padded), torch.zeros_like(w)
        output = torch.zeros_like(e)
        w = w.unflatten(0, (self.groups, -1))  # (G, Cout / G, Cin / G, *k)
        for k, places in self._taps(w.shape[3:], e.shape[2:]):
            x = padded[(..., *places)].unflatten(1, (self.groups, -1))
            at = (slice(None), slice(None), slice(None), *k)
            split = e.unflatten(1, (self.groups, -1))
            output += torch.einsum("ngi...,goi->ngo...", x, w[at]).flatten(1, 2)
            grad = torch.einsum("ngo...,goi->ngi...", split, w[at]).flatten(1, 2)
            grad_padded[(..., *places)] += grad
            flat_e, flat_x = split.flatten(3), x.flatten(3)
            taps = torch.einsum("ngop,ngip->goi", flat_e, flat_x).flatten(0, 1)
            grad_w[(slice(None), slice(None), *k)] += taps
        return Products(output, self._fold(grad_padded, sources), grad_w)

    def _transposed(self, a: Tensor, w: Tensor, e: Tensor) -> Products:
        kernel = w.shape[2:]
        grown = [
            (n - 1) * s + d * (k - 1) + 1
            for n, s, d, k in zip(a.shape[2:], self.stride, self.dilation, kernel, strict=True)
        ]
        extra = self.output_padding or (0,) * len(kernel)
        dense = torch.zeros(
            *e.shape[:2], *(g + x for g, x in zip(grown, extra, strict=True)), dtype=e.dtype
        )
        inner = tuple(slice(p, p + n) for p, n in zip(self.before, e.shape[2:], strict=True))
        dense_e = dense.clone()
        dense_e[(..., *inner)] = e
        grad_a, grad_w = torch.zeros_like(a), torch.zeros_like(w)
        x = a.unflatten(1, (self.groups, -1))
        w = w.unflatten(0, (self.groups, -1))  # (G, Cin / G, Cout / G, *k)
        for k, places in self._taps(kernel, a.shape[2:]):
            at = (slice(None), slice(None), slice(None), *k)
            dense[(..., *places)] += torch.einsum("ngi...,gio->ngo...", x, w[at]).flatten(1, 2)
            touched = dense_e[(..., *places)].unflatten(1, (self.groups, -1))
            grad_a += torch.einsum("ngo...,gio->ngi...", touched, w[at]).flatten(1, 2)
            flat_e, flat_x = touched.flatten(3), x.flatten(3)
            taps = torch.einsum("ngop,ngip->gio", flat_e, flat_x).flatten(0, 1)
            grad_w[(slice(None), slice(None), *k)] += taps
        return Products(dense[(..., *inner)], grad_a, grad_w)

    def _pad(self, a: Tensor) -> tuple[Tensor, list[list[int | None]]]:
        """The padded tensor, and for each dimension which element each place repeats."""
        sources = [
            [_repeats(i, n, self.mode) for i in range(-before, n + after)]
            for n, before, after in zip(a.shape[2:], self.before, self.after, strict=True)
        ]
        for dim, source in enumerate(sources, start=2):
            planes = [a.select(dim, i) if i is not None else None for i in source]
            zero = torch.zeros_like(a.select(dim, 0))
            a = torch.stack([zero if plane is None else plane for plane in planes], dim)
        return a, sources

    def _fold(self, grad: Tensor, sources: list[list[int | None]]) -> Tensor:
        """The transpose of `_pad`: every place's gradient goes to the element it repeats."""
        for dim, source in enumerate(sources, start=2):
            size = max(i for i in source if i is not None) + 1
            folded = [torch.zeros_like(grad.select(dim, 0)) for _ in range(size)]
            for place, i in enumerate(source):
                if i is not None:
                    folded[i] = folded[i] + grad.select(dim, place)
            grad = torch.stack(folded, dim)
        return grad


def _repeats(i: int, n: int, mode: str) -> int | None:
    """The element that stands at place `i` outside 0..n-1; None for a zero."""
    if 0 <= i < n:
        return i
    if mode == "zeros":
        return None
    if mode == "circular":
        return i % n
    if mode == "replicate":
        return min(max(i, 0), n - 1)
    assert mode == "reflect"
    return -i if i < 0 else 2 * (n - 1) - i
