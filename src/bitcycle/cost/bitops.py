"""The BitOPs of a training run, counted before the run from its schedules.

`training_cost` traces the model once (`cost/trace.py` counts the MACs of every product), evaluates
the schedules at every step, and turns MACs into BitOPs with a convention (`cost/conventions.py`).
The multiplication MACs x bits x bits is `Product.bitops` in `cost/count.py`; `cost/trace.py` sums
it over the products of a layer. `CostMeter` (`cost/meter.py`) counts the same during a run. Both
return a `Cost`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle, islice
from typing import Any

from torch import nn

from bitcycle.bits import Bits, PlainBits
from bitcycle.cost.conventions import (
    CONVENTIONS,
    LayerCost,
    OperandBits,
    Usage,
    operand_bits,
    scheduled_bits,
)
from bitcycle.cost.count import OPERANDS
from bitcycle.cost.throughput import DEVICES, Throughput, legend, speedup_cells
from bitcycle.cost.trace import Trace, count_macs
from bitcycle.kernels.base import MATMULS
from bitcycle.model_precision import PrecisionLike, rounded_roles
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.patterns import named_modules
from bitcycle.precision import (
    PARENTS,
    ROLES,
    BackwardOperands,
    Precision,
    check_backward_operands,
)
from bitcycle.role_schedules import (
    INHERIT,
    RoleSchedule,
    RoleSchedules,
    refuse_grids,
    resolve_schedules,
)
from bitcycle.schedules import Static, parse_schedule
from bitcycle.schedules.base import check_count, default_backward
from bitcycle.tables import THE_MODEL, text_table
from bitcycle.warnings import BitcycleWarning


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
    samples_per_step: int | Sequence[int] | None = None,
    batch_size: int | None = None,
    convention: str = "exact",
    baseline: PrecisionLike | None = None,
    backward_operands: BackwardOperands = "forward",
) -> Cost:
    """Count the cost of training a model with the schedules of a `PrecisionScheduler`.

    Where backward is not given it has the scheduler's default. backward_operands: the scheduler's;
    each of the three matmuls counts the bits that its operands have in it.

    example_inputs, batch_size: one batch, see `count_macs`. samples_per_step: the batch size of the
    run, by default that of the example; a list has the sizes of an epoch's batches, as the last may
    be smaller. convention: "exact", or a published one
    (`bitcycle.cost.conventions`). baseline: what `relative` compares with, by default every role
    at the top of its schedule. With "exact", layers that are not converted and roles that the
    quantizer does not round count at 32 bits. Adaptive schedules have no cost before the run;
    `CostMeter` counts them during it.

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
    by_keyword: dict[str, RoleSchedule] = {
        "forward": forward, "backward": backward,
        "weight": weight, "act": act, "error": error, "grad": grad,
    }  # fmt: skip
    check_count(total_steps, "total_steps")
    needs_conversion = CONVENTIONS[convention].needs_conversion
    schedules = find_layer_schedules(
        model,
        by_keyword,
        total_steps,
        needs_conversion=needs_conversion,
        backward_operands=backward_operands,
    )
    trace = count_macs(model, example_inputs, batch_size=batch_size)
    return cost_of_schedules(
        trace,
        schedules,
        total_steps=total_steps,
        samples_per_step=trace.batch_size if samples_per_step is None else samples_per_step,
        convention=convention,
        baseline=baseline,
    )


def cost_of_schedules(
    trace: Trace,
    schedules: LayerSchedules,
    *,
    total_steps: int,
    samples_per_step: int | Sequence[int],
    convention: str = "exact",
    baseline: PrecisionLike | None = None,
) -> Cost:
    """`training_cost` of a model that is traced already."""
    usages, tops = schedules.usages(trace.modules, total_steps, samples_per_step)
    return make_cost(
        trace,
        usages,
        tops,
        num_steps=total_steps,
        num_samples=sum(islice(cycle(_epoch(samples_per_step)), total_steps)),
        convention=convention,
        baseline=baseline,
        bits_of=schedules.bits_of,
        default_baseline=f"static {schedules.tops[0]}, the schedules' tops"
        if len(schedules.tops) == 1
        else "every role at its schedule's top",
    )


def make_cost(
    trace: Trace,
    usages: Sequence[Usage],
    tops: Sequence[OperandBits],
    *,
    num_steps: int,
    num_samples: int,
    convention: str,
    baseline: PrecisionLike | Mapping[str, Precision] | None,
    default_baseline: str,
    bits_of: BitsOf = operand_bits,
) -> Cost:
    """The cost of usages, and of the same steps at `baseline`, by default at `tops`."""
    count = CONVENTIONS[convention]
    if isinstance(baseline, Mapping):
        tops = [bits_of(module, _precision_of(module, baseline)) for module in trace.modules]
        baseline, default_baseline = None, "each layer at its given bits"
    elif baseline is not None:
        precision = Precision.parse(baseline)
        roles = rounded_roles(m for m in trace.modules if isinstance(m, QuantizedLayer))
        shown = precision.in_force(roles or OPERANDS)
        tops = [bits_of(module, precision) for module in trace.modules]
    return Cost(
        convention=convention,
        unit=count.unit,
        layers=count(trace, usages),
        baseline_layers=count(trace, [{top: (num_steps, num_samples)} for top in tops]),
        baseline=default_baseline if baseline is None else f"static {shown}",
        num_steps=num_steps,
        num_samples=num_samples,
        uncounted=trace.uncounted,
    )


def _precision_of(module: nn.Module, by_layer: Mapping[str, Precision]) -> Precision:
    """The given precision of a layer; a layer without one keeps its own."""
    if not isinstance(module, QuantizedLayer):
        return Precision()
    return by_layer.get(module.settings.name, module.precision)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a run by one convention, in exact whole numbers; `str()` is a table.

    `relative` and `saving` compare with the same run at the baseline. `traffic` models what
    hardware reads: each operand of each product once. `uniform_traffic` is the same with all
    operands equally large: 4q + 2b per layer and step. Neither is a measurement. In a run with
    formats, `published_throughput` is the speedup over bf16 by the published rates of a GPU.
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
        """BitOPs over the baseline's; 1 if the baseline has none."""
        return _ratio(self.bitops, sum(layer.bitops for layer in self.baseline_layers))

    @property
    def saving(self) -> float:
        """The share of the baseline's BitOPs that the run saves."""
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
        """Operand bits read if every operand had one element."""
        return sum(layer.uniform for layer in self.layers)

    @property
    def relative_uniform_traffic(self) -> float:
        """`uniform_traffic` over the baseline's: mean(4q + 2b) / (4Q + 2B) if all is quantized."""
        before = sum(layer.uniform for layer in self.baseline_layers)
        return _ratio(self.uniform_traffic, before)

    @property
    def published_throughput(self) -> Throughput | None:
        """The speedup over bf16 by published rates; None if no product has one."""
        return Throughput.of(self.layers)

    @property
    def has_formats(self) -> bool:
        """Whether any operand has a format at some step."""
        return any(layer.macs for layer in self.layers)

    def by_layer(self) -> dict[str, int]:
        """BitOPs of each layer by name."""
        return {layer.name: layer.bitops for layer in self.layers}

    def by_matmul(self) -> dict[str, int]:
        """BitOPs of output, grad_input and grad_weight."""
        return _by_matmul(self.layers)

    def by_stage(self) -> dict[str, int]:
        """BitOPs of groups of layers, such as layer1 of a ResNet or layers.3 of a Transformer.

        A stage is a prefix of the layers' names. The prefixes are as short as possible with at most
        half of the layers in each stage.
        """
        return {stage: now for stage, (now, _) in self._by_group(self._stages()).items()}

    def _stages(self) -> list[str]:
        """The stage of each layer."""
        parts = [layer.name.split(".") for layer in self.layers]
        for depth in range(1, max(map(len, parts), default=0) + 1):
            stages = [".".join(part[:depth]) for part in parts]
            if 2 * max(Counter(stages).values()) <= len(stages):
                return stages
        return [layer.name for layer in self.layers]

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types."""
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
            **self._published(),
        }

    def _published(self) -> dict[str, Any]:
        """The entry of a run with formats."""
        if not self.has_formats:
            return {}
        found = self.published_throughput
        return {"published_throughput": None if found is None else found.to_dict()}

    # -- tables ---------------------------------------------------------------------------------

    def __str__(self) -> str:
        before = _by_matmul(self.baseline_layers)
        return self._table(
            "matmul",
            {m: (n, before[m]) for m, n in self.by_matmul().items()},
            {m: Throughput.of(self.layers, m) for m in MATMULS},
        )

    def stage_table(self) -> str:
        """The table with one row per stage."""
        return self._group_table("stage", self._stages())

    def layer_table(self) -> str:
        """The table with one row per layer."""
        return self._group_table("layer", [layer.name for layer in self.layers])

    def _group_table(self, what: str, groups: Sequence[str]) -> str:
        """The table with one row per group, from the group of each layer."""
        members: dict[str, list[LayerCost]] = {}
        for group, layer in zip(groups, self.layers, strict=True):
            members.setdefault(group, []).append(layer)
        speedups = {group: Throughput.of(layers) for group, layers in members.items()}
        return self._table(what, self._by_group(groups), speedups)

    def _by_group(self, groups: Sequence[str]) -> dict[str, tuple[int, int]]:
        """BitOPs and the baseline's BitOPs by group, from the group of each layer."""
        totals = dict.fromkeys(groups, (0, 0))
        for group, layer, other in zip(groups, self.layers, self.baseline_layers, strict=True):
            now, before = totals[group]
            totals[group] = now + layer.bitops, before + other.bitops
        return totals

    def _table(
        self,
        what: str,
        groups: dict[str, tuple[int, int]],
        speedups: Mapping[str, Throughput | None],
    ) -> str:
        header: tuple[str, ...] = (what, f"G{self.unit}", "share", "relative")
        total = self.published_throughput
        if self.has_formats:
            header += DEVICES
        style = ".3e" if self.bitops >= 1e14 else ".4g"
        rows = [
            (
                name or THE_MODEL,
                f"{number / 1e9:{style}}",
                f"{number / (self.bitops or 1):.1%}",
                f"{_ratio(number, before):.4f}",
                *(speedup_cells(speedups[name]) if self.has_formats else ()),
            )
            for name, (number, before) in groups.items()
        ]
        last = ("all", f"{self.bitops / 1e9:{style}}", "100.0%", f"{self.relative:.4f}")
        rows.append((*last, *(speedup_cells(total) if self.has_formats else ())))
        lines = [
            f"cost by convention {self.convention!r}: {self.num_steps:,} steps, "
            f"{self.num_samples:,} samples",
            f"relative to {self.baseline}",
            text_table(header, rows, right=range(1, len(header))),
            *(legend(total) if self.has_formats else ()),
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


def _ratio(number: int, of: int) -> float:
    return number / of if of else 1.0


# -- schedules of the layers ----------------------------------------------------------------------

BitsOf = Callable[[nn.Module, Precision], OperandBits]


@dataclass(frozen=True)
class LayerSchedules:
    """The schedules of each converted layer, by the id of its module, and those of other layers."""

    by_layer: Mapping[int, RoleSchedules]
    others: RoleSchedules
    bits_of: BitsOf  # the bits of a layer's operands at a precision
    roles: frozenset[str] = frozenset(OPERANDS)  # those that some quantizer has a rule for
    backward_operands: BackwardOperands = "forward"

    @property
    def tops(self) -> tuple[Precision, ...]:
        """Every role in force at the top of its schedule; one precision unless layers differ."""
        schedules = dict.fromkeys(self.by_layer.values() or [self.others])
        return tuple(dict.fromkeys(self._top(each).in_force(self.roles) for each in schedules))

    def _top(self, schedules: RoleSchedules) -> Precision:
        highs = {role: s.high for role, s in zip(ROLES, schedules, strict=True)}
        return Precision(**highs, backward_operands=self.backward_operands)

    def usages(
        self, modules: Sequence[nn.Module], total_steps: int, samples_per_step: int | Sequence[int]
    ) -> tuple[list[Usage], list[OperandBits]]:
        """For each module the steps and samples at each bits, and its bits at the tops."""
        epoch = _epoch(samples_per_step)
        by_module = [(module, self.by_layer.get(id(module), self.others)) for module in modules]
        usages: list[Usage] = []
        for module, schedules in by_module:
            usage: dict[OperandBits, tuple[int, int]] = {}
            for (bits, size), count in _count_steps(schedules, total_steps, epoch).items():
                by_role = dict(zip(OPERANDS, bits, strict=True))
                precision = Precision(**by_role, backward_operands=self.backward_operands)
                own = self.bits_of(module, precision)
                num_steps, num_samples = usage.get(own, (0, 0))
                usage[own] = num_steps + count, num_samples + count * size
            usages.append(usage)
        return usages, [self.bits_of(module, self._top(each)) for module, each in by_module]


def find_layer_schedules(
    model: nn.Module,
    by_keyword: Mapping[str, RoleSchedule],
    total_steps: int,
    *,
    needs_conversion: bool = True,
    backward_operands: BackwardOperands = "forward",
) -> LayerSchedules:
    """The schedules of every layer from the keywords of a `PrecisionScheduler`, with its checks.

    needs_conversion=False: a model without a converted layer has the scheduled bits everywhere.
    """
    by_keyword = {**dict.fromkeys(("forward", "backward", *ROLES), INHERIT), **by_keyword}
    float32 = (parse_schedule("fp32"),) * len(ROLES)
    layers = [(e, e.module) for e in named_modules(model) if isinstance(e.module, QuantizedLayer)]
    if layers:
        schedules = resolve_schedules(layers, by_keyword, total_steps, backward_operands)
        by_layer = {id(layer): own for (_, layer), own in zip(layers, schedules, strict=True)}
        roles = rounded_roles(layer for _, layer in layers)
        return LayerSchedules(by_layer, float32, operand_bits, roles, backward_operands)
    check_backward_operands(backward_operands)
    if not needs_conversion:
        others = _float_model_schedules(by_keyword, total_steps)
        if backward_operands == "backward":
            refuse_grids(others, total_steps)
        return LayerSchedules({}, others, _scheduled_bits, backward_operands=backward_operands)
    if any(_lowers_bits(value, total_steps) for value in by_keyword.values()):
        warnings.warn(
            "the model has no quantized layer, so every layer counts at 32 bits; convert it first "
            "with quantize_model",
            BitcycleWarning,
            stacklevel=3,
        )
    return LayerSchedules({}, float32, operand_bits)


def _float_model_schedules(
    by_keyword: Mapping[str, RoleSchedule], total_steps: int
) -> RoleSchedules:
    """The schedules of all layers of a float model, which has none for patterns to match."""
    for keyword, value in by_keyword.items():
        if isinstance(value, Mapping):
            raise ValueError(
                f"{keyword}={value} has layer patterns, but the model has no quantized layer"
            )
    values = [by_keyword[PARENTS[role] if by_keyword[role] is INHERIT else role] for role in ROLES]
    weight, act, error, grad = (
        None if value is INHERIT else parse_schedule(value).over(total_steps)  # type: ignore[arg-type]
        for value in values
    )
    float32 = parse_schedule("fp32")
    weight, act = weight or float32, act or float32
    if error is None:
        error = Static(default_backward(weight, act))
    return weight, act, error, grad or error


def _scheduled_bits(module: nn.Module, precision: Precision) -> OperandBits:
    return scheduled_bits(precision)


def _lowers_bits(value: RoleSchedule, total_steps: int) -> bool:
    if value is INHERIT:
        return False
    if isinstance(value, Mapping):
        return any(_lowers_bits(inner, total_steps) for inner in value.values())
    schedule = parse_schedule(value).over(total_steps)  # type: ignore[arg-type]
    return not Bits.of(schedule.low).is_float32


@lru_cache(maxsize=64)  # the same for every layer and convention
def _count_steps(
    schedules: RoleSchedules, total_steps: int, epoch: tuple[int, ...]
) -> Counter[tuple[tuple[PlainBits, ...], int]]:
    """The number of steps at each bits of weight, act and error, and each number of samples."""
    operands = [schedules[ROLES.index(role)] for role in OPERANDS]
    values = {schedule: schedule.values(total_steps) for schedule in dict.fromkeys(operands)}
    bits = zip(*(values[schedule] for schedule in operands), strict=True)
    return Counter(zip(bits, cycle(epoch), strict=False))


def _epoch(samples_per_step: int | Sequence[int]) -> tuple[int, ...]:
    sizes = samples_per_step if isinstance(samples_per_step, Sequence) else [samples_per_step]
    if not sizes:
        raise ValueError("samples_per_step is empty; give a number, or those of an epoch's batches")
    return tuple(check_count(size, "samples_per_step") for size in sizes)
