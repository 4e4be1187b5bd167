"""`CostMeter` counts the cost of a run in progress, from the bits of its layers at every step.

MACs come from one traced batch (`cost/trace.py`), BitOPs from a convention
(`cost/conventions.py`). `cost/bitops.py` counts the same before a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from bitcycle.bits import Bits, order
from bitcycle.cost.bitops import Cost, make_cost
from bitcycle.cost.conventions import OperandBits, present_bits, with_backward
from bitcycle.cost.count import OPERANDS
from bitcycle.cost.trace import Trace, count_macs
from bitcycle.formats.catalogue import FORMATS
from bitcycle.model_precision import PrecisionLike
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.precision import FORWARD_OPERANDS, Precision
from bitcycle.registry import list_some
from bitcycle.schedules.base import check_count

_ROW_LENGTHS = (len(OPERANDS) + 2, len(OPERANDS) + len(FORWARD_OPERANDS) + 2)  # of a saved row


class CostMeter:
    """Add up the cost of training steps at the bits of the layers.

    The constructor traces the model once; `step` only reads Python attributes. Call `step` once per
    optimizer step, before the scheduler's. With a constant batch size the total is exactly the
    `training_cost` of the run.

    >>> import torch
    >>> from bitcycle.model_precision import set_precision
    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Linear(4, 8))
    >>> meter = CostMeter(model, torch.ones(2, 4))
    >>> set_precision(model, "FW4/BW8")
    >>> meter.step()
    >>> meter.step(num_samples=1)  # a partial batch
    >>> meter.by_matmul()  # 3 samples x 32 MACs x (4 x 4, 4 x 8)
    {'output': 1536, 'grad_input': 0, 'grad_weight': 3072}
    >>> meter.relative_to("FW8/BW8")
    0.375
    """

    def __init__(
        self, model: nn.Module, example_inputs: Any, *, batch_size: int | None = None
    ) -> None:
        self._trace: Trace = count_macs(model, example_inputs, batch_size=batch_size)
        self._usages: list[dict[OperandBits, tuple[int, int]]] = [{} for _ in self._trace.layers]
        self._num_steps = self._num_samples = 0
        self._present = self._read_layers()
        self._bits = [present_bits(module) for module in self._trace.modules]
        self._recent_steps = self._recent_samples = 0  # since the bits last changed

    # -- counting -------------------------------------------------------------------------------

    def step(self, num_samples: int | None = None) -> None:
        """Add one optimizer step at the present bits of the layers.

        num_samples: the samples of the step, over all its micro-batches; by default the traced
        batch size.
        """
        if num_samples is None:
            num_samples = self._trace.batch_size
        else:
            check_count(num_samples, "num_samples")
        present = self._read_layers()
        if present != self._present:
            self._add_recent()
            self._present = present
            self._bits = [present_bits(module) for module in self._trace.modules]
        self._recent_steps += 1
        self._recent_samples += num_samples
        self._num_steps += 1
        self._num_samples += num_samples

    def _read_layers(self) -> list[object]:
        """What decides the bits of each layer; mostly the same objects, so fast to compare."""
        return [
            (module.precision, module.quantized_roles)
            if isinstance(module, QuantizedLayer)
            else None
            for module in self._trace.modules
        ]

    def _add_recent(self) -> None:
        if self._recent_steps == 0:
            return
        for usage, bits in zip(self._usages, self._bits, strict=True):
            num_steps, num_samples = usage.get(bits, (0, 0))
            usage[bits] = num_steps + self._recent_steps, num_samples + self._recent_samples
        self._recent_steps = self._recent_samples = 0

    # -- reading --------------------------------------------------------------------------------

    @property
    def num_steps(self) -> int:
        """The number of optimizer steps so far."""
        return self._num_steps

    @property
    def num_samples(self) -> int:
        """The number of samples so far."""
        return self._num_samples

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The names of products that are not counted."""
        return self._trace.uncounted

    def cost(
        self,
        baseline: PrecisionLike | Mapping[str, Precision] | None = None,
        *,
        convention: str = "exact",
    ) -> Cost:
        """The cost so far.

        baseline: what `relative` compares with, by default every role of every layer at the most
        bits so far. `PrecisionScheduler.highest` is one, also by layer.
        """
        self._add_recent()
        tops = [
            tuple(max(column, key=order) for column in zip(*map(with_backward, usage), strict=True))
            or bits
            for usage, bits in zip(self._usages, self._bits, strict=True)
        ]
        return make_cost(
            self._trace,
            self._usages,
            tops,
            num_steps=self._num_steps,
            num_samples=self._num_samples,
            convention=convention,
            baseline=baseline,
            default_baseline="every role at the most bits it had",
        )

    @property
    def bitops(self) -> int:
        """MACs x bits x bits, summed over all steps so far."""
        return self.cost().bitops

    @property
    def traffic(self) -> int:
        """Operand bits read, summed over all steps so far."""
        return self.cost().traffic

    def relative_to(self, precision: PrecisionLike) -> float:
        """BitOPs so far over those of the same steps at a static precision; 1 before step 0."""
        return self.cost(precision).relative

    def by_layer(self) -> dict[str, int]:
        """BitOPs of each layer by name."""
        return self.cost().by_layer()

    def by_matmul(self) -> dict[str, int]:
        """BitOPs of output, grad_input and grad_weight."""
        return self.cost().by_matmul()

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types.

        A layer has rows of weight, act and error bits, those of weight and act in the backward
        products where they differ, steps and samples. A format is its name.
        """
        self._add_recent()
        return {
            "num_steps": self._num_steps,
            "num_samples": self._num_samples,
            "layers": {
                layer.name: [
                    [*(Bits.of(each).to_json() for each in bits), *counts]
                    for bits, counts in usage.items()
                ]
                for layer, usage in zip(self._trace.layers, self._usages, strict=True)
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; the MACs are those of this meter."""
        names = [layer.name for layer in self._trace.layers]
        if set(state["layers"]) != set(names):
            differing = sorted(set(names) ^ set(state["layers"]))
            raise ValueError(
                f"the saved meter and this model differ in the layers {list_some(differing)}"
            )
        for name in names:
            _check_rows(name, state["layers"][name])
        self._usages = [
            {
                tuple(FORMATS.get(each, each) for each in bits): (num_steps, num_samples)
                for *bits, num_steps, num_samples in rows
            }
            for rows in (state["layers"][name] for name in names)
        ]
        self._num_steps, self._num_samples = int(state["num_steps"]), int(state["num_samples"])
        self._recent_steps = self._recent_samples = 0


def _check_rows(name: str, rows: Any) -> None:
    for row in rows:
        is_row = isinstance(row, list | tuple) and len(row) in _ROW_LENGTHS
        if not is_row or not all(_is_count(each) for each in _without_formats(row)):
            raise ValueError(
                f"the saved meter has {row!r} for layer {name!r}, not the bits of {OPERANDS}, the "
                "number of steps and the number of samples"
            )


def _without_formats(row: Any) -> list[Any]:
    """The entries of a row but for bits that are the name of a format."""
    bits, counts = row[:-2], row[-2:]
    return [*(each for each in bits if not isinstance(each, str) or each not in FORMATS), *counts]


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
