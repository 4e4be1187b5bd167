"""What a run costs: BitOPs and operand traffic, next to those of a baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bitcycle.cost.count import MATMULS
from bitcycle.tables import text_table


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """One layer over a whole run: BitOPs of its three matmuls, and operand bits read."""

    name: str
    kind: str
    output: int
    grad_input: int
    grad_weight: int
    traffic: int  # by tensor sizes
    uniform: int = 0  # as if every operand had one element

    @property
    def bitops(self) -> int:
        """Of the three matmuls together."""
        return self.output + self.grad_input + self.grad_weight


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a run by one convention. All counts are whole numbers, exact.

    `relative` and `saving` compare with the same run at the baseline; `str()` is a table.
    `traffic` is a model of what hardware reads (each operand of each product once), no measurement;
    `uniform_traffic` is the same with all operands equally large: 4q + 2b per layer and step.
    """

    convention: str
    layers: tuple[LayerCost, ...]
    baseline_layers: tuple[LayerCost, ...] = field(repr=False)
    baseline: str = field(compare=False)  # in words
    num_steps: int
    num_samples: int
    uncounted: tuple[str, ...]
    unit: str = "BitOPs"

    @property
    def bitops(self) -> int:
        """MACs x bits x bits, summed over layers, matmuls and steps; in the convention's `unit`."""
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

    @property
    def uniform_traffic(self) -> int:
        """Operand bits read if every operand of every product had one element."""
        return sum(layer.uniform for layer in self.layers)

    @property
    def relative_uniform_traffic(self) -> float:
        """The same over the baseline's: mean(4q + 2b) / (4Q + 2B) when all is quantized."""
        before = sum(layer.uniform for layer in self.baseline_layers)
        return _ratio(self.uniform_traffic, before)

    def by_layer(self) -> dict[str, int]:
        """BitOPs of each layer by name."""
        return {layer.name: layer.bitops for layer in self.layers}

    def by_matmul(self) -> dict[str, int]:
        """BitOPs of output, grad_input and grad_weight."""
        return _by_matmul(self.layers)

    def by_stage(self) -> dict[str, int]:
        """BitOPs of groups of layers, such as layer1 of a ResNet or layers.3 of a Transformer.

        A stage is a prefix of the layers' names: the shortest for which no stage has more than half
        of the layers.
        """
        totals = dict.fromkeys(self._stages(), 0)
        for stage, layer in zip(self._stages(), self.layers, strict=True):
            totals[stage] += layer.bitops
        return totals

    def _stages(self) -> list[str]:
        """The stage of each layer."""
        parts = [layer.name.split(".") for layer in self.layers]
        for depth in range(1, max(map(len, parts), default=0) + 1):
            stages = [".".join(part[:depth]) for part in parts]
            if 2 * max(Counter(stages).values()) <= len(stages):
                return stages
        return [layer.name for layer in self.layers]

    def to_dict(self) -> dict[str, Any]:
        """Only JSON types."""
        return {
            "convention": self.convention,
            "unit": self.unit,
            "baseline": self.baseline,
            "num_steps": self.num_steps,
            "num_samples": self.num_samples,
            "bitops": self.bitops,
            "relative": self.relative,
            "saving": self.saving,
            "by_matmul": self.by_matmul(),
            "by_stage": self.by_stage(),
            "by_layer": self.by_layer(),
            "traffic_bits": self.traffic,
            "relative_traffic": self.relative_traffic,
            "relative_uniform_traffic": self.relative_uniform_traffic,
            "uncounted": list(self.uncounted),
        }

    # -- tables ---------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self._page("matmul", self._by_group(list(MATMULS)))

    def stage_table(self) -> str:
        """Like `str()`, with a row for every stage."""
        return self._page("stage", self._by_group(self._stages()))

    def layer_table(self) -> str:
        """Like `str()`, with a row for every layer."""
        return self._page("layer", self._by_group([layer.name for layer in self.layers]))

    def _by_group(self, groups: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Cost and baseline's cost by matmul, or by the group that each layer is in."""
        if tuple(groups) == MATMULS:
            before = _by_matmul(self.baseline_layers)
            return {m: (number, before[m]) for m, number in self.by_matmul().items()}
        totals = dict.fromkeys(groups, (0, 0))
        for group, layer, other in zip(groups, self.layers, self.baseline_layers, strict=True):
            now, before_now = totals[group]
            totals[group] = now + layer.bitops, before_now + other.bitops
        return totals

    def _page(self, what: str, groups: dict[str, tuple[int, int]]) -> str:
        style = ".3e" if self.bitops >= 1e14 else ".4g"
        rows = [
            (
                name or "(the model itself)",
                f"{number / 1e9:{style}}",
                f"{_share(number, self.bitops):.1%}",
                f"{_ratio(number, before):.4f}",
            )
            for name, (number, before) in groups.items()
        ]
        rows.append(("all", f"{self.bitops / 1e9:{style}}", "100.0%", f"{self.relative:.4f}"))
        lines = [
            f"cost by convention {self.convention!r}: {self.num_steps:,} steps, "
            f"{self.num_samples:,} samples",
            f"relative to {self.baseline}",
            text_table((what, f"G{self.unit}", "share", "relative"), rows, right=(1, 2, 3)),
            f"saving {self.saving:.2%}",
            f"operand traffic {self.traffic / 8e9:.4g} GB, {self.relative_traffic:.4f} of the "
            "baseline's (a model, not a measurement);",
            f"  {self.relative_uniform_traffic:.4f} if all operands were equally large",
        ]
        if self.uncounted:
            lines += ["not counted:", *(f"  {line}" for line in self.uncounted)]
        return "\n".join(lines)


def _by_matmul(layers: Sequence[LayerCost]) -> dict[str, int]:
    return {matmul: sum(getattr(layer, matmul) for layer in layers) for matmul in MATMULS}


def _share(number: int, of: int) -> float:
    return number / of if of else 0.0


def _ratio(number: int, of: int) -> float:
    return number / of if of else 1.0
