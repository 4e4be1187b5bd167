"""The bits that schedules give to the layers of a model, and for how many steps and samples."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import nn

from bitcycle.cost.product import OPERANDS
from bitcycle.cost.usage import OperandBits, Usage, operand_bits
from bitcycle.nn.base import QuantizedLayer
from bitcycle.patterns import named_modules
from bitcycle.precision import PARENTS, ROLES, Precision, cost_bits, is_float
from bitcycle.role_schedules import INHERIT, Plan, RoleSchedule, role_schedules
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
