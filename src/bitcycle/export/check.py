"""Whether an exported model does what the evaluated one does: outputs and metrics of a split.

Sums are formed in another order elsewhere, and x / s + z is rounded otherwise than (x + z s) / s,
so an activation that lies halfway between two codes may take the other one. The tolerance is one
step of the coarsest grid: the mean difference of the outputs must be at most 2^-b of the largest
output, b being the fewest bits of any operand, and the metric within 1 % of the run's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.assign import get_precision, quantized_layers
from bitcycle.precision import Precision
from bitcycle.tasks import Split, Task
from bitcycle.train.evaluate import evaluate, evaluating, is_converted

METRIC_TOLERANCE = 0.01  # of the run's metric
FLOAT_BITS = 12  # without grids only the order of sums differs

Bits = Precision | dict[str, Precision]


@dataclass(frozen=True, kw_only=True)
class Check:
    """run, exported: the metric of the split. Differences are those of outputs."""

    split: Split
    metric: str
    run: float
    exported: float
    largest_output: float
    largest_difference: float
    mean_difference: float
    tolerance: float  # of the mean difference

    @property
    def is_within(self) -> bool:
        """Whether the exported model is the evaluated one, to the stated tolerance."""
        is_near = abs(self.exported - self.run) <= METRIC_TOLERANCE * abs(self.run)
        return is_near and self.mean_difference <= self.tolerance


def compare(task: Task, model: nn.Module, bits: Bits, exported: nn.Module, split: Split) -> Check:
    """Run both on every batch of the split, the model at these bits."""
    cpu = torch.device("cpu")
    metrics = evaluate(task, model, split, bits, device=cpu)
    both = _Both(model, exported)
    with evaluating(model, bits), evaluating(exported, _own_bits(exported)):
        steps = 2.0 ** -_fewest_bits(model)
        others = evaluate(task, both, split, Precision(), device=cpu)
    return Check(
        split=split,
        metric=task.metric,
        run=metrics[task.metric],
        exported=others[task.metric],
        largest_output=both.largest_output,
        largest_difference=both.largest,
        mean_difference=both.total / max(both.count, 1),
        tolerance=steps * both.largest_output,
    )


class _Both(nn.Module):
    """Answers as the exported model and notes how far the other one is from it."""

    def __init__(self, model: nn.Module, exported: nn.Module) -> None:
        super().__init__()
        self.models = (model, exported)  # a tuple: no children, whose bits would be set
        self.largest_output, self.largest, self.total, self.count = 0.0, 0.0, 0.0, 0

    def forward(self, *inputs: Any, **more: Any) -> Any:
        answers = [model(*inputs, **more) for model in self.models]
        expected, output = (_first(answer) for answer in answers)
        difference = (output - expected).abs()
        self.largest_output = max(self.largest_output, float(expected.abs().max()))
        self.largest = max(self.largest, float(difference.max()))
        self.total += float(difference.double().sum())
        self.count += difference.numel()
        return answers[1]


def _first(answer: Any) -> Tensor:
    """Of what a recurrent model returns: its output, without the state."""
    return answer[0] if isinstance(answer, tuple) else answer  # type: ignore[no-any-return]


def _own_bits(model: nn.Module) -> Bits:
    return get_precision(model) if is_converted(model) else Precision()


def _fewest_bits(model: nn.Module) -> int:
    """Of the weights and activations of a model at its present bits."""
    if not is_converted(model):
        return FLOAT_BITS
    each = [layer.precision for _, layer in quantized_layers(model)]
    return min([FLOAT_BITS, *(b for p in each for b in (p.weight, p.act) if b is not None)])
