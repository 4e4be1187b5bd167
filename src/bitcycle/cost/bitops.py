"""What a schedule will cost, before the run: BitOPs by a named convention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from bitcycle.assign import PrecisionLike
from bitcycle.cost.macs import check_count, count_macs
from bitcycle.cost.product import MATMULS
from bitcycle.cost.result import Cost, LayerCost
from bitcycle.cost.scheduled import BitsOf, LayerPlans, find_plans
from bitcycle.cost.trace import LayerMacs, Trace
from bitcycle.cost.usage import OperandBits, Usage, grad_weight_error_bits, operand_bits
from bitcycle.precision import Precision
from bitcycle.registry import Registry
from bitcycle.role_schedules import INHERIT, RoleSchedule

Count = Callable[[Trace, Sequence[Usage]], tuple[LayerCost, ...]]


@dataclass(frozen=True, kw_only=True)
class Convention:
    """A way to count: what a traced batch costs at the bits its layers have, and in which unit.

    needs_conversion: whether only converted layers have the scheduled bits. Published counts take
    every layer at them.
    """

    count: Count
    unit: str = "BitOPs"
    needs_conversion: bool = True

    def __call__(self, trace: Trace, usages: Sequence[Usage]) -> tuple[LayerCost, ...]:
        """The cost of each layer."""
        return self.count(trace, usages)


CONVENTIONS: Registry[Convention] = Registry("cost convention", "bitcycle.cost")


def exact(trace: Trace, usages: Sequence[Usage]) -> tuple[LayerCost, ...]:
    """Each product that is really computed, at the bits its layer really has.

    BitOPs = sum over the products p of a layer and the bits (a, b) it is at
             of macs(p) a b samples / batch_size,
    and operand bits read likewise, except that a weight is read once a step, whatever the batch.
    """
    size = trace.batch_size
    costs = []
    for layer, module, usage in zip(trace.layers, trace.modules, usages, strict=True):
        totals = dict.fromkeys(MATMULS, 0)  # times size: whole numbers
        for bits, (_, num_samples) in usage.items():
            amounts = layer.at_bits(bits, grad_weight_error_bits(module, bits))
            for matmul, number in amounts.bitops.items():
                totals[matmul] += number * num_samples
        whole = {matmul: divide(number, size) for matmul, number in totals.items()}
        traffic, uniform = operand_traffic(layer, usage, size, module)
        costs.append(
            LayerCost(name=layer.name, kind=layer.kind, **whole, traffic=traffic, uniform=uniform)
        )
    return tuple(costs)


CONVENTIONS.register("exact")(Convention(count=exact))


def operand_traffic(
    layer: LayerMacs, usage: Usage, batch_size: int, module: nn.Module | None = None
) -> tuple[int, int]:
    """Operand bits read by a layer's products: by tensor sizes, and as if each had one element.

    module: the layer itself, whose quantizer may give grad_weight an error of its own.
    """
    sized = uniform = 0
    for bits, (num_steps, num_samples) in usage.items():
        error = None if module is None else grad_weight_error_bits(module, bits)
        amounts = layer.at_bits(bits, error)
        sized += amounts.batch_reads * num_samples + amounts.weight_reads * num_steps * batch_size
        uniform += amounts.uniform_reads * num_steps
    return divide(sized, batch_size), uniform


def divide(number: int, by: int) -> int:
    """Exact when the layer's work is proportional to the samples; else the nearest whole number.

    >>> divide(12, 4), divide(13, 4), divide(15, 4)
    (3, 3, 4)
    """
    return (2 * number + by) // (2 * by)


def make_cost(
    trace: Trace,
    usages: Sequence[Usage],
    tops: Sequence[OperandBits],
    *,
    num_steps: int,
    num_samples: int,
    convention: str,
    baseline: PrecisionLike | None,
    default_baseline: str,
    bits_of: BitsOf = operand_bits,
) -> Cost:
    """The cost of usages, next to that of the same steps at `baseline`, or else at `tops`."""
    counted = CONVENTIONS[convention]
    if baseline is not None:
        precision = Precision.parse(baseline)
        tops = [bits_of(module, precision) for module in trace.modules]
    return Cost(
        convention=convention,
        unit=counted.unit,
        layers=counted(trace, usages),
        baseline_layers=counted(trace, [{top: (num_steps, num_samples)} for top in tops]),
        baseline=default_baseline if baseline is None else f"static {precision}",
        num_steps=num_steps,
        num_samples=num_samples,
        uncounted=trace.uncounted,
    )


def training_cost(
    model: nn.Module,
    example_inputs: Any,
    *,
    forward: RoleSchedule = INHERIT,
    backward: RoleSchedule = INHERIT,
    weight: RoleSchedule = INHERIT,
    act: RoleSchedule = INHERIT,
    error: RoleSchedule = INHERIT,
    grad: RoleSchedule = INHERIT,
    total_steps: int,
    samples_per_step: int | None = None,
    batch_size: int | None = None,
    convention: str = "exact",
    baseline: PrecisionLike | None = None,
) -> Cost:
    """The cost of training the model with these schedules, as a `PrecisionScheduler` takes them.

    example_inputs, batch_size: one batch, see `count_macs`. samples_per_step: the batch size of the
    run, if another. convention: "exact", or one of the published ones (`bitcycle.cost.published`).
    baseline: what `relative` compares with; by default the static upper bound, every role at its
    schedule's top. Layers that are not converted, and roles without a rule, count at 32 bits
    (exactly counted, that is). A rule that follows the training has no cost before it: a
    `CostMeter` counts it as it happens.

    >>> import torch
    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> cost = training_cost(
    ...     model, torch.ones(1, 4), forward="stages:4@0.5,8", backward=8, total_steps=100
    ... )
    >>> cost.by_matmul()  # output: 48 MACs x (50 steps x 16 + 50 x 64)
    {'output': 192000, 'grad_input': 76800, 'grad_weight': 230400}
    >>> cost.bitops, round(cost.saving, 4)
    (499200, 0.3036)
    """
    given: dict[str, RoleSchedule] = {
        "forward": forward, "backward": backward,
        "weight": weight, "act": act, "error": error, "grad": grad,
    }  # fmt: skip
    check_count(total_steps, "total_steps")
    CONVENTIONS[convention]  # unknown: before anything runs
    if samples_per_step is not None:
        check_count(samples_per_step, "samples_per_step")
    plans = find_plans(
        model, given, total_steps, needs_conversion=CONVENTIONS[convention].needs_conversion
    )
    trace = count_macs(model, example_inputs, batch_size=batch_size)
    samples = samples_per_step or trace.batch_size
    return cost_of_plans(
        trace,
        plans,
        total_steps=total_steps,
        samples_per_step=samples,
        convention=convention,
        baseline=baseline,
    )


def cost_of_plans(
    trace: Trace,
    plans: LayerPlans,
    *,
    total_steps: int,
    samples_per_step: int,
    convention: str = "exact",
    baseline: PrecisionLike | None = None,
) -> Cost:
    """What `training_cost` says, of a model that is traced and whose schedules are found."""
    usages, tops = plans.usages(trace.modules, total_steps, samples_per_step)
    static = plans.top
    return make_cost(
        trace,
        usages,
        tops,
        num_steps=total_steps,
        num_samples=total_steps * samples_per_step,
        convention=convention,
        baseline=baseline,
        bits_of=plans.bits_of,
        default_baseline="every role at its schedule's top"
        if static is None
        else f"static {static}, the schedules' tops",
    )
