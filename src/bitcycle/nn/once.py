"""Backward passes that have no derivative of their own, and say so whenever one is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """As torch's `once_differentiable`, also where the incoming gradient is a constant.

    Torch's takes that for a sign that nothing can be differentiated, and returns constants: of
    `grad(model(x).sum(), x, create_graph=True)`, a gradient penalty, nothing would be learned, and
    nobody would know.
    """
    refusing = once_differentiable(backward)

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph=True
            grads = tuple(
                g.detach().requires_grad_() if isinstance(g, torch.Tensor) else g for g in grads
            )
        return refusing(ctx, *grads)

    return wrapper
