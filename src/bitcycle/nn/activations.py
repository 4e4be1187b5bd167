"""nn.ReLU that keeps one bit per element for its backward pass instead of its output.

Worth it beside layers that keep codes: the float output would live on for the ReLU alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle.nn.companion import COMPANIONS, Companion, awaits_gradient
from bitcycle.ops.layout import flat, is_dense, like
from bitcycle.ops.packing import keep_positive, pack_positive


@COMPANIONS.register("torch.nn.modules.activation.ReLU")
class MaskedReLU(Companion, nn.ReLU):
    """A converted nn.ReLU: the same output and gradient, 1/32 of the memory in between."""

    def forward(self, input: Tensor) -> Tensor:
        """max(x, 0); exactly nn.ReLU without bits, without gradients, or for special tensors."""
        if not self.saves_memory(input):
            return super().forward(input)
        if not self.inplace:
            return _masked(input, False)
        if torch.compiler.is_compiling():  # compiled functions cannot return what they overwrite
            return input.copy_(_masked(input, False))
        return _masked(input, True)


def _masked(x: Tensor, inplace: bool) -> Tensor:
    output: Tensor = _ReLU.apply(x, inplace)  # type: ignore[no-untyped-call]
    return output


class _ReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool) -> Tensor:
        if inplace:
            ctx.mark_dirty(x)
        output = x.relu_() if inplace else x.relu()
        ctx.save_for_backward(pack_positive(_in_order(output)))
        ctx.stride = _stride(output)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (words,) = ctx.saved_tensors
        if ctx.stride is None:  # rather than is_compiling: compiled autograd comes after eager code
            return keep_positive(words, g.reshape(-1)).view(g.shape), None
        return _Gate.apply(g, words, ctx.stride), None  # type: ignore[no-untyped-call]


class _Gate(torch.autograd.Function):
    """g where the output was positive: linear in g, so its own derivative is itself."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, words: Tensor, stride: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(words)
        ctx.stride = stride
        if g.stride() != stride:
            g = torch.empty_strided(g.shape, stride, dtype=g.dtype, device=g.device).copy_(g)
        return like(keep_positive(words, flat(g)), g)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _Gate.apply(g, *ctx.saved_tensors, ctx.stride), None, None  # type: ignore[no-untyped-call]


def _in_order(x: Tensor) -> Tensor:
    return x.reshape(-1) if torch.compiler.is_compiling() else flat(x)


def _stride(x: Tensor) -> tuple[int, ...] | None:
    """Of a dense tensor whose elements lie in the order of `_in_order(x)`; None: row-major."""
    if torch.compiler.is_compiling():
        return None
    return x.stride() if is_dense(x) else torch.empty(x.shape, device="meta").stride()


@COMPANIONS.register("torch.nn.modules.dropout.Dropout")
class MaskedDropout(Companion, nn.Dropout):
    """A converted nn.Dropout: the same draws, output and gradient, 1/32 of the memory."""

    def forward(self, input: Tensor) -> Tensor:
        """x * noise, with noise 0 with probability p, else 1 / (1 - p).

        Exactly nn.Dropout where that draws nothing, without bits, without gradients, for special
        tensors, and where its draws are made otherwise: compiled, and off the CPU.
        """
        is_drawn = self.training and 0 < self.p < 1 and input.numel() > 0
        if not is_drawn or torch.compiler.is_compiling() or input.device.type != "cpu":
            return super().forward(input)
        if not self.saves_memory(input):
            return super().forward(input)
        output: Tensor = _Dropout.apply(input, self.p, self.inplace)  # type: ignore[no-untyped-call]
        return output


def drop(x: Tensor, p: float) -> Tensor:
    """`F.dropout(x, p)` of a layer that has bits: the same draws, output and gradient.

    >>> _ = torch.manual_seed(0)
    >>> drop(torch.ones(8, requires_grad=True), 0.5).unique().tolist()
    [0.0, 2.0]
    """
    is_drawn = 0 < p < 1 and x.numel() > 0 and x.device.type == "cpu"
    if not is_drawn or torch.compiler.is_compiling() or not awaits_gradient(x):
        return F.dropout(x, p)
    output: Tensor = _Dropout.apply(x, p, False)  # type: ignore[no-untyped-call]
    return output


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, inplace: bool) -> Tensor:
        # the steps of torch's own CPU dropout: another layout or order would draw other numbers
        noise = torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)
        ctx.save_for_backward(pack_positive(flat(noise)))
        ctx.p, ctx.stride = p, noise.stride()
        if inplace:
            ctx.mark_dirty(x)
            return x.mul_(noise)
        return x * noise

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _Noise.apply(g, *ctx.saved_tensors, ctx.p, ctx.stride), None, None  # type: ignore[no-untyped-call]


class _Noise(torch.autograd.Function):
    """g * noise, from the bits of the noise: linear in g, so its own derivative is itself."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, words: Tensor, p: float, stride: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(words)
        ctx.p, ctx.stride = p, stride
        kept = torch.ones((), dtype=g.dtype).div_(1 - p)
        noise = keep_positive(words, kept.expand(g.numel()))
        return g * noise.as_strided(
            g.shape, stride
        )  # a product: the gradient of 0 may be -0 or NaN

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        return _Noise.apply(g, *ctx.saved_tensors, ctx.p, ctx.stride), None, None, None  # type: ignore[no-untyped-call]
