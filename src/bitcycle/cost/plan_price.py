"""Prices of many schedules from one trace of the model: what `training_cost` says of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from bitcycle.assign import quantized_layers
from bitcycle.cost.bitops import CONVENTIONS
from bitcycle.cost.macs import Trace, check_count, count_macs
from bitcycle.cost.plan_runs import Run, count_steps, find_runs
from bitcycle.cost.scheduled import BitsOf, find_plans
from bitcycle.cost.usage import OperandBits, Usage
from bitcycle.precision import Precision
from bitcycle.role_schedules import INHERIT, RoleSchedule
from bitcycle.schedules import Bits, Schedule

Pair = tuple[Bits, Bits]  # forward and backward bits of a step


@dataclass(frozen=True)
class Pricer:
    """The traced model and the length of the run; `bitops` prices one forward schedule."""

    trace: Trace
    backward: Schedule
    total_steps: int
    samples_per_step: int
    convention: str
    _bits_of: BitsOf = field(repr=False)
    _backward_runs: list[Run] = field(repr=False)
    _known: dict[Pair, list[OperandBits]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        example_inputs: Any,
        *,
        backward: Schedule,
        total_steps: int,
        samples_per_step: int | None,
        batch_size: int | None,
        convention: str,
    ) -> Pricer:
        """Traces the model, once."""
        if CONVENTIONS[convention].needs_conversion:
            quantized_layers(model)  # none: every schedule would cost the same
        bits_of = _bits_of(model, backward, total_steps, convention)
        runs = find_runs(backward, total_steps)
        trace = count_macs(model, example_inputs, batch_size=batch_size)
        samples = trace.batch_size if samples_per_step is None else samples_per_step
        check_count(samples, "samples_per_step")
        return cls(trace, backward, total_steps, samples, convention, bits_of, runs)

    def bitops(self, runs: list[Run]) -> int:
        """BitOPs of a run whose forward bits are these, by the convention."""
        return self._price(count_steps(runs, self._backward_runs))

    def upper_bound(self, high: int) -> int:
        """BitOPs with forward bits static at `high` and errors at the top of their schedule."""
        return self._price({(high, self.backward.high): self.total_steps})

    def _price(self, steps: dict[Pair, int]) -> int:
        usages: list[Usage] = []
        by_pair = [(self._operands(pair), number) for pair, number in steps.items()]
        for place in range(len(self.trace.layers)):
            usage: dict[OperandBits, tuple[int, int]] = {}
            for operands, number in by_pair:
                before = usage.get(operands[place], (0, 0))[0]
                total = before + number  # pairs may cost the same: a float layer is always at 32
                usage[operands[place]] = total, total * self.samples_per_step
            usages.append(usage)
        return sum(layer.bitops for layer in CONVENTIONS[self.convention](self.trace, usages))

    def _operands(self, pair: Pair) -> list[OperandBits]:
        """The bits that every layer multiplies at."""
        if pair not in self._known:
            q, b = pair
            precision = Precision(weight=q, act=q, error=b, grad=b)
            self._known[pair] = [self._bits_of(m, precision) for m in self.trace.modules]
        return self._known[pair]


def _bits_of(model: nn.Module, backward: Schedule, total_steps: int, convention: str) -> BitsOf:
    """What a layer multiplies at when it is given a precision, by the convention."""
    given: dict[str, RoleSchedule] = dict.fromkeys(("weight", "act", "error", "grad"), INHERIT)
    given |= {"forward": "fp32", "backward": backward}
    needs = CONVENTIONS[convention].needs_conversion
    return find_plans(model, given, total_steps, needs_conversion=needs).bits_of
