"""nn.ReLU and nn.Dropout that save one bit per element for the backward pass.

The float modules save a float tensor, which a quantized layer next to them, saving codes, does not
need. Outputs and gradients are bit-identical to the float modules'. These modules have no bits of
their own, add no buffers, and appear in no audit and no schedule.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle.native.encode import PLAIN
from bitcycle.nn.class_swap import SwappedModule, qualified_name, swap_class
from bitcycle.nn.settings import ModelState
from bitcycle.ops.packing import drop_again, dropout_mask, keep_positive, relu_mask
from bitcycle.registry import Registry


class MaskedModule(SwappedModule):
    """Mixed in before a float module type; `shared` is the state of the model's layers."""

    name_prefix = "Masked"
    shared: ModelState

    def saves_mask(self, x: Tensor) -> bool:
        """Whether to save a bit mask: some layer has bits, and backward reaches `x`."""
        return self.shared.has_bits and needs_gradient(x)

    def become_float(self) -> None:
        """Make the module an instance of its float type again."""
        del self.shared
        self.swap_back()


MASKED_MODULES: Registry[type[MaskedModule]] = Registry("masked module", "bitcycle.nn")


def can_convert_activation(module: nn.Module) -> bool:
    """Whether a masked module exists for this one and computes the same."""
    if isinstance(module, MaskedModule):
        return True
    base = _registered_base(type(module))
    if base is None or isinstance(module, torch.jit.ScriptModule):
        return False
    is_plain = type(module).forward is base.forward and "forward" not in module.__dict__
    return is_plain and not hasattr(module, "shared")


def convert_activation(module: nn.Module, shared: ModelState) -> None:
    """Make the module save bit masks while a layer that shares this state has bits."""
    if not isinstance(module, MaskedModule):
        base = _registered_base(type(module))
        assert base is not None
        swap_class(module, MASKED_MODULES[qualified_name(base)])
    module.shared = shared  # type: ignore[assignment]


def _registered_base(kind: type[nn.Module]) -> type[nn.Module] | None:
    return next((base for base in kind.__mro__ if qualified_name(base) in MASKED_MODULES), None)


def needs_gradient(x: Tensor) -> bool:
    """Whether `x` is an ordinary strided tensor that requires a gradient."""
    return (
        x.requires_grad
        and torch.is_grad_enabled()
        and type(x) in PLAIN
        and x.layout is torch.strided
        and not x.is_nested
    )


@MASKED_MODULES.register("torch.nn.modules.activation.ReLU")
class MaskedReLU(MaskedModule, nn.ReLU):
    """A converted nn.ReLU: the same output and gradient, 1/32 of the saved memory."""

    def forward(self, input: Tensor) -> Tensor:
        """max(x, 0); exactly nn.ReLU without bits, without gradients, or for special tensors."""
        if not self.saves_mask(input):
            return super().forward(input)
        # compiled functions cannot return what they overwrite
        copies = self.inplace and torch.compiler.is_compiling()
        output: Tensor = _ReLU.apply(input, self.inplace and not copies)  # type: ignore[no-untyped-call]
        return input.copy_(output) if copies else output


class _ReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool) -> Tensor:
        if inplace:
            ctx.mark_dirty(x)
        output, words, ctx.stride = relu_mask(x, inplace=inplace)
        ctx.save_for_backward(words)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (words,) = ctx.saved_tensors
        if ctx.stride is None:  # the bits are row-major: the forward pass was compiled
            return keep_positive(words, g.reshape(-1)).view(g.shape), None
        if torch.is_grad_enabled():  # create_graph=True
            return _ReLUBackward.apply(g, words, ctx.stride), None  # type: ignore[no-untyped-call]
        return _relu_gradient(words, g, ctx.stride), None


class _ReLUBackward(torch.autograd.Function):
    """g where the output was positive: linear in g, so its own derivative is itself."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, words: Tensor, stride: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(words)
        ctx.stride = stride
        return _relu_gradient(words, g, stride)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _ReLUBackward.apply(g, *ctx.saved_tensors, ctx.stride), None, None  # type: ignore[no-untyped-call]


def _relu_gradient(words: Tensor, g: Tensor, stride: tuple[int, ...]) -> Tensor:
    """`g` where the bit is 1, in the layout of the output that the bits are of."""
    if g.stride() == stride:
        return keep_positive(words, g)
    turned = torch.empty_strided(g.shape, stride, dtype=g.dtype, device=g.device).copy_(g)
    return keep_positive(words, turned, inplace=True)


@MASKED_MODULES.register("torch.nn.modules.dropout.Dropout")
class MaskedDropout(MaskedModule, nn.Dropout):
    """A converted nn.Dropout: the same draws, output and gradient, 1/32 of the saved memory."""

    def forward(self, input: Tensor) -> Tensor:
        """x * noise, with noise 0 with probability p, else 1 / (1 - p).

        Exactly nn.Dropout where it draws nothing, without bits, without gradients, for special
        tensors, compiled, and off the CPU.
        """
        if not (self.training and _can_mask(input, self.p) and self.saves_mask(input)):
            return super().forward(input)
        return _dropout(input, self.p, self.inplace)


def masked_dropout(x: Tensor, p: float) -> Tensor:
    """`F.dropout(x, p)` inside a layer that has bits: the same draws, output and gradient.

    >>> _ = torch.manual_seed(0)
    >>> masked_dropout(torch.ones(8, requires_grad=True), 0.5).unique().tolist()
    [0.0, 2.0]
    """
    if not (_can_mask(x, p) and needs_gradient(x)):
        return F.dropout(x, p)
    return _dropout(x, p, False)


def _can_mask(x: Tensor, p: float) -> bool:
    """Whether dropout draws numbers here, in the way that `_Dropout` repeats."""
    is_drawn = 0 < p < 1 and x.numel() > 0
    return is_drawn and x.device.type == "cpu" and not torch.compiler.is_compiling()


def _dropout(x: Tensor, p: float, inplace: bool) -> Tensor:
    output: Tensor = _Dropout.apply(x, p, inplace)  # type: ignore[no-untyped-call]
    return output


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, inplace: bool) -> Tensor:
        if inplace:
            ctx.mark_dirty(x)
        output, words, ctx.stride = dropout_mask(x, p, inplace=inplace)
        ctx.save_for_backward(words)
        ctx.p = p
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (words,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            grad = _DropoutBackward.apply(g, words, ctx.p, ctx.stride)  # type: ignore[no-untyped-call]
            return grad, None, None
        return drop_again(words, ctx.stride, g, ctx.p), None, None


class _DropoutBackward(torch.autograd.Function):
    """g * noise, from the bits of the noise: linear in g, so its own derivative is itself."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, words: Tensor, p: float, stride: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(words)
        ctx.p, ctx.stride = p, stride
        return drop_again(words, stride, g, p)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        return _DropoutBackward.apply(g, *ctx.saved_tensors, ctx.p, ctx.stride), None, None, None  # type: ignore[no-untyped-call]
