"""A product as its cost sees it, and the registry of functions that list a layer's products.

A counter is one function, filed under the qualified name of the float type it counts; subclasses
and converted layers are found through it. A new layer adds its counter in one place: any file of
this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bitcycle.nn.swap import qualified_name
from bitcycle.registry import Registry

MATMULS = ("output", "grad_input", "grad_weight")
OPERANDS = ("weight", "act", "error")  # the roles that are multiplied
FIXED = "fixed"  # what no role's bits reach: the coefficients of a graph's edges, in float32
ONES = "ones"  # edges without coefficients, one bit each: a MAC is an addition


@dataclass(frozen=True, kw_only=True)
class Product:
    """One of a layer's matmuls over the traced batch: MACs, and what each operand reads.

    >>> p = Product(matmul="output", roles=("act", "weight"), macs=32, elements=(8, 4))
    >>> p.bitops({"act": 3, "weight": 4}), p.traffic({"act": 3, "weight": 4})
    (384, (24, 16))
    """

    matmul: str
    roles: tuple[str, str]
    macs: int
    elements: tuple[int, int]  # of each operand, as often as it is read

    def bitops(self, bits: Mapping[str, int]) -> int:
        """MACs x bits(a) x bits(b)."""
        a, b = self.roles
        return self.macs * bits[a] * bits[b]

    def traffic(self, bits: Mapping[str, int]) -> tuple[int, int]:
        """Operand bits read: those that grow with the batch, and those of weights, which do not."""
        by_kind = [0, 0]
        for role, num_elements in zip(self.roles, self.elements, strict=True):
            by_kind[role == "weight"] += num_elements * bits[role]
        return by_kind[0], by_kind[1]


def layer_products(
    macs: int,
    *,
    act: int,
    second: int,
    error: int,
    has_grad_input: bool,
    has_grad_weight: bool,
    second_role: str = "weight",
) -> list[Product]:
    """The matmuls that exist of act x second, from its MACs and the elements of its operands.

    output = act x second, grad_input = error x second, grad_weight = error x act: each sums over
    another dimension of the same index space, so the MACs are the same. For a product of two
    activations second_role is "act" and grad_weight the gradient of the second operand.
    """
    products = [("output", ("act", second_role), (act, second))]
    if has_grad_input:
        products.append(("grad_input", ("error", second_role), (error, second)))
    if has_grad_weight:
        products.append(("grad_weight", ("error", "act"), (error, act)))
    return [Product(matmul=m, roles=r, macs=macs, elements=e) for m, r, e in products]


def add_up(products: Iterable[Product]) -> tuple[Product, ...]:
    """Products of the same matmul and roles as one, in the order of MATMULS."""
    sums: dict[tuple[str, tuple[str, str]], tuple[int, int, int]] = {}
    for p in products:
        macs, a, b = sums.get((p.matmul, p.roles), (0, 0, 0))
        sums[p.matmul, p.roles] = macs + p.macs, a + p.elements[0], b + p.elements[1]
    return tuple(
        Product(matmul=matmul, roles=roles, macs=macs, elements=(a, b))
        for (matmul, roles), (macs, a, b) in sorted(
            sums.items(), key=lambda item: MATMULS.index(item[0][0])
        )
    )


class UncountedError(Exception):
    """Raised by a counter for a call that it cannot count, with the reason."""


@dataclass(frozen=True)
class Call:
    """One call of a module, seen from its forward hook."""

    module: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any

    def optional(self, index: int, name: str) -> Any:
        """An argument by position or name; None when it was not given."""
        return self.args[index] if index < len(self.args) else self.kwargs.get(name)

    def argument(self, index: int, name: str) -> Any:
        """An argument that there must be."""
        value = self.optional(index, name)
        if value is None:
            raise UncountedError(f"called without {name!r}")
        return value

    @property
    def result(self) -> Tensor:
        """The output of a module that returns one tensor."""
        if not isinstance(self.output, Tensor):
            raise UncountedError(f"returns a {type(self.output).__name__}")
        return self.output

    @cached_property
    def has_graph(self) -> bool:
        """Whether anything of this call will be differentiated."""
        leaves = tree_leaves(self.output)
        return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)

    def needs(self, *tensors: Tensor | None) -> bool:
        """Whether the backward pass computes a gradient for any of these."""
        return self.has_graph and any(t is not None and t.requires_grad for t in tensors)


Counter = Callable[[Call], list[Product]]
COUNTERS: Registry[Counter] = Registry("MAC counter", "bitcycle.cost")


def find_counter(kind: type[nn.Module]) -> tuple[type[nn.Module], Counter] | None:
    """The counter of the nearest type in the inheritance of `kind`, with that type.

    >>> class MyLinear(nn.Linear): ...
    >>> base, counter = find_counter(MyLinear)
    >>> base.__name__, counter.__name__
    ('Linear', 'count_linear')
    """
    for base in kind.__mro__:
        if (name := qualified_name(base)) in COUNTERS:
            return base, COUNTERS[name]
    return None
