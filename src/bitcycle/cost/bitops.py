"""What a schedule will cost, before the run: BitOPs by a named convention."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from bitcycle.assign import PrecisionLike
from bitcycle.cost.macs import Trace, check_count, count_macs
from bitcycle.cost.product import MATMULS, OPERANDS
from bitcycle.cost.result import Cost, LayerCost
from bitcycle.cost.usage import OperandBits, Usage, operand_bits
from bitcycle.nn.base import QuantizedLayer
from bitcycle.patterns import named_modules
from bitcycle.precision import ROLES, Precision, is_float
from bitcycle.registry import Registry
from bitcycle.scheduler import INHERIT, Plan, RoleSchedule, role_schedules
from bitcycle.schedules import Bits, parse_schedule
from bitcycle.warnings import BitcycleWarning

Convention = Callable[[Trace, Sequence[Usage]], tuple[LayerCost, ...]]
CONVENTIONS: Registry[Convention] = Registry("cost convention", "bitcycle.cost")


@CONVENTIONS.register("exact")
def exact(trace: Trace, usages: Sequence[Usage]) -> tuple[LayerCost, ...]:
    """Each product that is really computed, at the bits its layer really has.

    BitOPs = sum over the products p of a layer and the bits (a, b) it is at
             of macs(p) a b samples / batch_size,
    and operand bits read likewise, except that a weight is read once a step, whatever the batch.
    """
    size = trace.batch_size
    costs = []
    for layer, usage in zip(trace.layers, usages, strict=True):
        totals = dict.fromkeys((*MATMULS, "traffic"), 0)  # times size: whole numbers
        for bits, (num_steps, num_samples) in usage.items():
            bitops, read_of_batch, read_of_weights = layer.at_bits(bits)
            for matmul, number in bitops.items():
                totals[matmul] += number * num_samples
            totals["traffic"] += read_of_batch * num_samples + read_of_weights * num_steps * size
        whole = {key: _divide(number, size) for key, number in totals.items()}
        costs.append(LayerCost(name=layer.name, kind=layer.kind, **whole))
    return tuple(costs)


def _divide(number: int, by: int) -> int:
    """Exact when the layer's work is proportional to the samples; else the nearest whole number."""
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
) -> Cost:
    """The cost of usages, next to that of the same steps at `baseline`, or else at `tops`."""
    count = CONVENTIONS[convention]
    if baseline is not None:
        precision = Precision.parse(baseline)
        tops = [operand_bits(module, precision) for module in trace.modules]
    return Cost(
        convention=convention,
        layers=count(trace, usages),
        baseline_layers=count(trace, [{top: (num_steps, num_samples)} for top in tops]),
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
    run, if another. baseline: what `relative` compares with; by default the static upper bound,
    every role at its schedule's top. Layers that are not converted, and roles without a rule, count
    at 32 bits.

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
    plans = _plans(model, given, total_steps)
    trace = count_macs(model, example_inputs, batch_size=batch_size)
    samples = trace.batch_size if samples_per_step is None else samples_per_step
    check_count(samples, "samples_per_step")
    float32 = (parse_schedule("fp32"),) * len(ROLES)
    layer_plans = [plans.get(id(module), float32) for module in trace.modules]
    steps_at = {plan: _count_steps(plan, total_steps) for plan in dict.fromkeys(layer_plans)}
    usages, tops = [], []
    for module, plan in zip(trace.modules, layer_plans, strict=True):
        usages.append(_usage(module, steps_at[plan], samples))
        highs = Precision(**{role: s.high for role, s in zip(ROLES, plan, strict=True)})
        tops.append(operand_bits(module, highs))
    return make_cost(
        trace,
        usages,
        tops,
        num_steps=total_steps,
        num_samples=total_steps * samples,
        convention=convention,
        baseline=baseline,
        default_baseline="every role at its schedule's top",
    )


def _plans(
    model: nn.Module, given: Mapping[str, RoleSchedule], total_steps: int
) -> dict[int, Plan]:
    """The schedules of every converted layer, by the id of the module."""
    layers = [(e, e.module) for e in named_modules(model) if isinstance(e.module, QuantizedLayer)]
    if layers:
        plans = role_schedules(layers, given, total_steps)
        return {id(layer): plan for (_, layer), plan in zip(layers, plans, strict=True)}
    if any(_lowers(value) for value in given.values()):
        warnings.warn(
            "the model has no quantized layer: everything counts at 32 bits, whatever the "
            "schedules; convert it first: bitcycle.quantize_model(model)",
            BitcycleWarning,
            stacklevel=3,
        )
    return {}


def _lowers(value: RoleSchedule) -> bool:
    if value is INHERIT:
        return False
    if isinstance(value, Mapping):
        return any(_lowers(inner) for inner in value.values())
    return not is_float(parse_schedule(value).low)  # type: ignore[arg-type]


def _count_steps(plan: Plan, total_steps: int) -> Counter[tuple[Bits, ...]]:
    """How many steps have which bits of weight, act and error: few entries for many steps."""
    operands = [plan[ROLES.index(role)] for role in OPERANDS]
    values = {schedule: schedule.values(total_steps) for schedule in dict.fromkeys(operands)}
    return Counter(zip(*(values[schedule] for schedule in operands), strict=True))


def _usage(
    module: nn.Module, steps_at: Mapping[tuple[Bits, ...], int], samples_per_step: int
) -> Usage:
    num_steps: Counter[OperandBits] = Counter()
    for bits, count in steps_at.items():
        precision = Precision(**dict(zip(OPERANDS, bits, strict=True)))
        num_steps[operand_bits(module, precision)] += count
    return {bits: (steps, steps * samples_per_step) for bits, steps in num_steps.items()}
