"""What a schedule will cost, before the run: BitOPs by a named convention."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import nn

from bitcycle.cost.conventions import CONVENTIONS, OperandBits, Usage, operand_bits
from bitcycle.cost.count import OPERANDS
from bitcycle.cost.result import Cost
from bitcycle.cost.trace import Trace, check_count, count_macs
from bitcycle.model_precision import PrecisionLike
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.patterns import named_modules
from bitcycle.precision import PARENTS, ROLES, Precision, cost_bits, is_float
from bitcycle.scheduler import INHERIT, Plan, RoleSchedule, role_schedules
from bitcycle.schedules import Bits, parse_schedule
from bitcycle.warnings import BitcycleWarning

BitsOf = Callable[[nn.Module, Precision], OperandBits]


@dataclass(frozen=True)
class LayerPlans:
    """The schedules of each converted layer, by the id of its module, and those of all others."""

    by_layer: Mapping[int, Plan]
    others: Plan
    bits_of: BitsOf  # what a layer multiplies at when it is given a precision

    @property
    def top(self) -> Precision | None:
        """The precision at which every schedule has its top, if that is one for all layers."""
        tops = {_top(plan) for plan in self.by_layer.values()} or {_top(self.others)}
        return tops.pop() if len(tops) == 1 else None

    def usages(
        self, modules: Sequence[nn.Module], total_steps: int, samples_per_step: int
    ) -> tuple[list[Usage], list[OperandBits]]:
        """Of each module: the bits it is at with steps and samples, and the bits of the tops."""
        plans = [self.by_layer.get(id(module), self.others) for module in modules]
        steps_at = {plan: _count_steps(plan, total_steps) for plan in dict.fromkeys(plans)}
        usages: list[Usage] = []
        for module, plan in zip(modules, plans, strict=True):
            num_steps: Counter[OperandBits] = Counter()
            for bits, count in steps_at[plan].items():
                precision = Precision(**dict(zip(OPERANDS, bits, strict=True)))
                num_steps[self.bits_of(module, precision)] += count
            usages.append({bits: (n, n * samples_per_step) for bits, n in num_steps.items()})
        tops = [
            self.bits_of(module, _top(plan)) for module, plan in zip(modules, plans, strict=True)
        ]
        return usages, tops


def find_plans(
    model: nn.Module,
    given: Mapping[str, RoleSchedule],
    total_steps: int,
    *,
    needs_conversion: bool = True,
) -> LayerPlans:
    """From keywords of a `PrecisionScheduler`, checked as it checks them.

    needs_conversion=False: a model without a converted layer has the scheduled bits everywhere.
    """
    given = {**dict.fromkeys(("forward", "backward", *ROLES), INHERIT), **given}
    float32 = (parse_schedule("fp32"),) * len(ROLES)
    layers = [(e, e.module) for e in named_modules(model) if isinstance(e.module, QuantizedLayer)]
    if layers:
        plans = role_schedules(layers, given, total_steps)
        by_layer = {id(layer): plan for (_, layer), plan in zip(layers, plans, strict=True)}
        return LayerPlans(by_layer, float32, operand_bits)
    if not needs_conversion:
        return LayerPlans({}, _plan_of_all(given), _scheduled_bits)
    if any(_lowers(value) for value in given.values()):
        warnings.warn(
            "the model has no quantized layer: everything counts at 32 bits, whatever the "
            "schedules; convert it first: bitcycle.quantize_model(model)",
            BitcycleWarning,
            stacklevel=3,
        )
    return LayerPlans({}, float32, operand_bits)


def _plan_of_all(given: Mapping[str, RoleSchedule]) -> Plan:
    """The roles' schedules without layers to ask: no patterns."""
    for key, value in given.items():
        if isinstance(value, Mapping):
            raise ValueError(
                f"{key}= has patterns and the model no quantized layer that they could match; "
                "convert it first: bitcycle.quantize_model(model)"
            )
    values = [given[role] if given[role] is not INHERIT else given[PARENTS[role]] for role in ROLES]
    return tuple(
        parse_schedule("fp32" if value is INHERIT else value)  # type: ignore[arg-type]
        for value in values
    )


def _scheduled_bits(module: nn.Module, precision: Precision) -> OperandBits:
    return tuple(cost_bits(getattr(precision, role)) for role in OPERANDS)


def _top(plan: Plan) -> Precision:
    return Precision(**{role: s.high for role, s in zip(ROLES, plan, strict=True)})


def _lowers(value: RoleSchedule) -> bool:
    if value is INHERIT:
        return False
    if isinstance(value, Mapping):
        return any(_lowers(inner) for inner in value.values())
    return not is_float(parse_schedule(value).low)  # type: ignore[arg-type]


@lru_cache(maxsize=64)  # asked again for every convention and batch size
def _count_steps(plan: Plan, total_steps: int) -> Counter[tuple[Bits, ...]]:
    """How many steps have which bits of weight, act and error: few entries for many steps."""
    operands = [plan[ROLES.index(role)] for role in OPERANDS]
    values = {schedule: schedule.values(total_steps) for schedule in dict.fromkeys(operands)}
    return Counter(zip(*(values[schedule] for schedule in operands), strict=True))


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
    run, if another. convention: "exact", or a published one (`bitcycle.cost.conventions`).
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
