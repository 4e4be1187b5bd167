"""What a run costs: BitOPs and operand traffic, next to those of a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bitcycle.cost.product import MATMULS
from bitcycle.tables import text_table


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """One layer over a whole run: BitOPs of its three matmuls, and operand bits read."""

    name: str
    kind: str
    output: int
    grad_input: int
    grad_weight: int
    traffic: int

    @property
    def bitops(self) -> int:
        """Of the three matmuls together."""
        return self.output + self.grad_input + self.grad_weight


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a run by one convention. All counts are whole numbers, exact.

    `relative` and `saving` compare with the same run at the baseline; `str()` is a table.
    `traffic` is a model of what hardware reads (each operand of each product once), no measurement.
    """

    convention: str
    layers: tuple[LayerCost, ...]
    baseline_layers: tuple[LayerCost, ...] = field(repr=False)
    baseline: str = field(compare=False)  # in words
    num_steps: int
    num_samples: int
    uncounted: tuple[str, ...]

    @property
    def bitops(self) -> int:
        """MACs x bits x bits, summed over layers, matmuls and steps."""
        return sum(layer.bitops for layer in self.layers)

    @property
    def relative(self) -> float:
        """BitOPs over the baseline's; 1 when there is nothing to compare."""
        return _ratio(self.bitops, sum(layer.bitops for layer in self.baseline_layers))

    @property
    def saving(self) -> float:
        """The share of the baseline's BitOPs that is not spent."""
        return 1 - self.relative

    @property
    def traffic(self) -> int:
        """Operand bits read, summed over layers, matmuls and steps."""
        return sum(layer.traffic for layer in self.layers)

    @property
    def relative_traffic(self) -> float:
        """Operand bits read over the baseline's."""
        return _ratio(self.traffic, sum(layer.traffic for layer in self.baseline_layers))

    def by_layer(self) -> dict[str, int]:
        """BitOPs of each layer by name."""
        return {layer.name: layer.bitops for layer in self.layers}

    def by_matmul(self) -> dict[str, int]:
        """BitOPs of output, grad_input and grad_weight."""
        return _by_matmul(self.layers)

    def __str__(self) -> str:
        before = _by_matmul(self.baseline_layers)
        rows = [
            (matmul, f"{bitops / 1e9:.4g}", f"{_ratio(bitops, before[matmul]):.4f}")
            for matmul, bitops in self.by_matmul().items()
        ]
        rows.append(("all", f"{self.bitops / 1e9:.4g}", f"{self.relative:.4f}"))
        return self._page("matmul", rows)

    def layer_table(self) -> str:
        """Like `str()`, with a row for every layer."""
        rows = [
            (
                layer.name or "(the model itself)",
                f"{layer.bitops / 1e9:.4g}",
                f"{_ratio(layer.bitops, before.bitops):.4f}",
            )
            for layer, before in zip(self.layers, self.baseline_layers, strict=True)
        ]
        rows.append(("all", f"{self.bitops / 1e9:.4g}", f"{self.relative:.4f}"))
        return self._page("layer", rows)

    def _page(self, what: str, rows: Sequence[tuple[str, str, str]]) -> str:
        steps = f"{self.num_steps:,} steps, {self.num_samples:,} samples"
        lines = [
            f"cost, convention {self.convention!r}: {steps}; relative to {self.baseline}",
            text_table((what, "GBitOPs", "relative"), rows, right=(1, 2)),
            f"saving {self.saving:.2%}; operand traffic {self.traffic / 8e9:.4g} GB, "
            f"{self.relative_traffic:.4f} of the baseline's",
        ]
        if self.uncounted:
            lines += ["not counted:", *(f"  {line}" for line in self.uncounted)]
        return "\n".join(lines)


def _by_matmul(layers: Sequence[LayerCost]) -> dict[str, int]:
    return {matmul: sum(getattr(layer, matmul) for layer in layers) for matmul in MATMULS}


def _ratio(number: int, of: int) -> float:
    return number / of if of else 1.0
