"""What one traced batch told: the products of every layer, the norms, and what was not counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import nn

from bitcycle.cost.product import FIXED, MATMULS, ONES, OPERANDS, Product


class Amounts(NamedTuple):
    """What a layer's products come to at given bits, over the traced batch."""

    bitops: dict[str, int]  # by matmul
    batch_reads: int  # operand bits read that grow with the batch
    weight_reads: int  # and those that do not
    uniform_reads: int  # if every operand had one element


@dataclass(frozen=True)
class LayerMacs:
    """The products of one layer over the traced batch; all its calls added up."""

    name: str
    kind: str  # the float module's type
    products: tuple[Product, ...]
    _known: dict[tuple[int, ...], Amounts] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def at_bits(self, bits: tuple[int, ...], grad_weight_error: int | None = None) -> Amounts:
        """For bits of weight, act and error; computed once, asked for at every step of a run.

        grad_weight_error: the error's bits in grad_weight, if they are others than in grad_input.
        """
        key = (*bits, bits[-1] if grad_weight_error is None else grad_weight_error)
        if key not in self._known:
            self._known[key] = self._add_up(key)
        return self._known[key]

    def _add_up(self, bits: tuple[int, ...]) -> Amounts:
        by_role = {**dict(zip(OPERANDS, bits[:-1], strict=True)), FIXED: 32, ONES: 1}
        in_grad_weight = {**by_role, "error": bits[-1]}
        pairs = [
            (product, in_grad_weight if product.matmul == "grad_weight" else by_role)
            for product in self.products
        ]
        bitops = dict.fromkeys(MATMULS, 0)
        for product, at in pairs:
            bitops[product.matmul] += product.bitops(at)
        reads = [product.traffic(at) for product, at in pairs]
        return Amounts(
            bitops=bitops,
            batch_reads=sum(of_batch for of_batch, _ in reads),
            weight_reads=sum(of_weights for _, of_weights in reads),
            uniform_reads=sum(at[role] for product, at in pairs for role in product.roles),
        )

    @property
    def macs(self) -> dict[str, int]:
        """MACs by matmul; 0 where there is none, such as the first layer's grad_input."""
        return {m: sum(p.macs for p in self.products if p.matmul == m) for m in MATMULS}

    @property
    def output(self) -> int:
        """MACs of the forward product."""
        return self.macs["output"]

    @property
    def grad_input(self) -> int:
        """MACs of the input's gradient."""
        return self.macs["grad_input"]

    @property
    def grad_weight(self) -> int:
        """MACs of the weight's gradient (for a MatMul: the second operand's)."""
        return self.macs["grad_weight"]

    @property
    def is_aggregation(self) -> bool:
        """Whether it sums over the edges of a graph."""
        return any(role in product.roles for product in self.products for role in (FIXED, ONES))


@dataclass(frozen=True)
class Norm:
    """A normalization layer that ran: multiplies no matrices, but published counts have it."""

    name: str
    kind: str
    family: str  # "batch" or "layer"
    elements: int  # of its outputs


@dataclass(frozen=True)
class Trace:
    """Every layer that ran, the batch it ran on, and what multiplied without being counted."""

    layers: tuple[LayerMacs, ...]
    batch_size: int
    uncounted: tuple[str, ...]
    norms: tuple[Norm, ...]
    modules: tuple[nn.Module, ...] = field(repr=False, compare=False)  # of the layers
    order: tuple[str, ...] = field(repr=False, compare=False)  # names of all modules

    @property
    def macs(self) -> dict[str, int]:
        """MACs of the whole batch by matmul."""
        return {m: sum(layer.macs[m] for layer in self.layers) for m in MATMULS}
