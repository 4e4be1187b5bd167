"""Products that a model computes without a module of their own: x @ y, einsum, fused attention.

Counted from the operands, under the name of the module whose forward they ran in. No layer lowers
their bits, so they are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.cost.product import Product, layer_products
from bitcycle.products import ProductWatch

Formula = Callable[[tuple[Any, ...], Any], list[Product]]


class ProductCounter(ProductWatch):  # type: ignore[no-untyped-call]
    """Counts the products that no module owns; those without a formula are only named."""

    def __init__(self) -> None:
        super().__init__()
        self.products: dict[str, list[Product]] = {}  # by the module they ran in
        self.num_counted: dict[str, int] = {}

    def note(self, place: str, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Count it, or take down its name."""
        if name not in FORMULAS:
            super().note(place, name, args, result)
            return
        self.products.setdefault(place, []).extend(FORMULAS[name](args, result))
        self.num_counted[place] = self.num_counted.get(place, 0) + 1

    def take_back(self, place: str, num_calls: int) -> bool:
        """Forget what ran in a module, if that was one product per call."""
        named = [found for found in self.found if found[0] == place]
        if sum(self.found[n] for n in named) + self.num_counted.get(place, 0) != num_calls:
            return False
        for found in named:
            del self.found[found]
        self.products.pop(place, None)
        self.num_counted.pop(place, None)
        return True


def matrix_products(a: Tensor, b: Tensor, result: Tensor) -> list[Product]:
    """(..., M, K) x (..., K, N): elements(result) x K MACs.

    >>> products = matrix_products(torch.ones(2, 3), torch.ones(3, 5), torch.ones(2, 5))
    >>> [(p.matmul, p.roles, p.macs) for p in products]
    [('output', ('act', 'act'), 30)]
    """
    if _is_weight(a) and not _is_weight(b):
        a, b = b, a
        macs = result.numel() * a.shape[-2 if a.dim() > 1 else 0]
    else:
        macs = result.numel() * a.shape[-1]
    return _products(a, b, macs, result.numel())


def _products(a: Tensor, b: Tensor, macs: int, num_outputs: int) -> list[Product]:
    return layer_products(
        macs,
        act=a.numel(),
        second=b.numel(),
        error=num_outputs,
        has_grad_input=_needs(a),
        has_grad_weight=_needs(b),
        second_role="weight" if _is_weight(b) else "act",
    )


def _needs(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _is_weight(x: Tensor) -> bool:
    return isinstance(x if x._base is None else x._base, nn.Parameter)


def _two(args: tuple[Any, ...], result: Tensor) -> list[Product]:
    return matrix_products(args[0], args[1], result)


def _added_to(args: tuple[Any, ...], result: Tensor) -> list[Product]:
    return matrix_products(args[1], args[2], result)  # c + a b


def _linear(args: tuple[Any, ...], result: Tensor) -> list[Product]:
    x, weight = args[:2]
    return _products(x, weight, result.numel() * x.shape[-1], result.numel())


def _convolution(args: tuple[Any, ...], result: Tensor) -> list[Product]:
    x, weight = args[:2]
    is_transposed = args[6]
    # (Cout, Cin / groups, *kernel), or (Cin, Cout / groups, *kernel)
    macs = (x if is_transposed else result).numel() * (weight.numel() // weight.shape[0])
    return _products(x, weight, macs, result.numel())


def _attention(args: tuple[Any, ...], result: Any) -> list[Product]:
    """softmax(q k') v: elements(q) x S and rows(q) x S x Ev MACs, for S keys.

    What a fused backward pass computes again is not counted.
    """
    q, k, v = args[:3]
    num_rows, num_keys = q.numel() // q.shape[-1], k.shape[-2]
    scores, mixed = num_rows * num_keys, num_rows * v.shape[-1]
    return [
        *layer_products(
            q.numel() * num_keys, act=q.numel(), second=k.numel(), error=scores, second_role="act",
            has_grad_input=_needs(q), has_grad_weight=_needs(k),
        ),
        *layer_products(
            mixed * num_keys, act=scores, second=v.numel(), error=mixed, second_role="act",
            has_grad_input=_needs(q, k), has_grad_weight=_needs(v),
        ),
    ]  # fmt: skip


FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), _two),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _added_to),
    "linear": _linear,
    **dict.fromkeys(("convolution", "convolution_overrideable"), _convolution),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
        ),
        _attention,
    ),
}
