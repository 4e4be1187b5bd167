"""The costs of several schedules of one model: `bitcycle cost MODEL --schedules A B C`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bitcycle.bits import Bits, order
from bitcycle.cost import CONVENTIONS, Cost, count_macs
from bitcycle.cost.bitops import LayerSchedules, cost_of_schedules, find_layer_schedules
from bitcycle.precision import ROLES, BackwardOperands, Precision
from bitcycle.schedules import parse_schedule
from bitcycle.tables import text_table
from bitcycle_lab.cost.run import notes_of
from bitcycle_lab.cost.spec import TrainingSpec


class TracedModel:
    """A model that is traced once, to count many schedules."""

    def __init__(self, spec: TrainingSpec, *, needs_conversion: bool = True) -> None:
        self.needs_conversion = needs_conversion
        self.model = spec.build(needs_conversion=needs_conversion)
        self.trace = count_macs(self.model, spec.inputs(self.model, spec.example_size))

    def schedules(
        self,
        roles: Mapping[str, Any],
        total_steps: int,
        backward_operands: BackwardOperands = "forward",
    ) -> LayerSchedules:
        """The schedule of every role of every layer."""
        return find_layer_schedules(
            self.model,
            roles,
            total_steps,
            needs_conversion=self.needs_conversion,
            backward_operands=backward_operands,
        )


def compare_schedules(
    specs: Sequence[TrainingSpec], *, convention: str = "exact", budget: float | None = None
) -> ScheduleComparison:
    """Count runs of one model that differ in their schedules; the cheapest is the first row.

    Shares are of the reference: the same run at static bits, the highest of all schedules. budget:
    the share that a run may cost. The model is traced once for each quantizer of the specs.
    """
    needs_conversion = CONVENTIONS[convention].needs_conversion
    models: dict[str | None, TracedModel] = {}
    runs = []
    for spec in specs:
        key = None if spec.precision.is_float else spec.precision.quantizer
        if key not in models:
            models[key] = TracedModel(spec, needs_conversion=needs_conversion)
        roles, operands = spec.precision.schedule_texts(), spec.precision.backward_operands
        traced = models[key]
        runs.append((traced.trace, traced.schedules(roles, spec.total_steps, operands)))
    highest = _highest([top for _, schedules in runs for top in schedules.tops])
    costs = [
        cost_of_schedules(
            trace,
            schedules,
            total_steps=spec.total_steps,
            samples_per_step=spec.samples_per_step,
            convention=convention,
            baseline=highest,
        )
        for spec, (trace, schedules) in zip(specs, runs, strict=True)
    ]
    # they differ if a quantizer has a rule of its own for attention
    reference = max(sum(layer.bitops for layer in cost.baseline_layers) for cost in costs)
    rows = [_schedule_row(*pair, reference) for pair in zip(specs, costs, strict=True)]
    return ScheduleComparison(
        spec=specs[0],
        convention=convention,
        unit=costs[0].unit,
        reference=f"static {Bits.of(highest.weight)}/{Bits.of(highest.error)}",
        reference_bitops=reference,
        budget=budget,
        rows=tuple(sorted(rows, key=lambda row: row.bitops)),
        uncounted=costs[0].uncounted,
        notes=notes_of(specs[0], convention),
    )


def _highest(tops: Sequence[Precision]) -> Precision:
    return Precision(
        **{role: max((getattr(top, role) for top in tops), key=order) for role in ROLES}
    )


def _schedule_row(spec: TrainingSpec, cost: Cost, reference: int) -> ScheduleRow:
    forward = parse_schedule(spec.precision.forward)  # type: ignore[arg-type]
    texts = {role: str(text) for role, text in spec.shown_bits().items() if role != "forward"}
    if texts.keys() <= {"backward"}:
        backward = texts.get("backward", "fp32")
    else:
        backward = ", ".join(f"{role} {text}" for role, text in texts.items())
    return ScheduleRow(
        forward=str(forward),
        backward=backward,
        bitops=cost.bitops,
        share=cost.bitops / reference if reference else 1.0,
        mean_bits=forward.preview(spec.total_steps).mean_bits,
    )


def parse_share(text: str) -> float:
    """Read a share from "70%" or "0.7".

    >>> parse_share("70%"), parse_share("0.7")
    (0.7, 0.7)
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ValueError(f"budget {text!r} must be above 0% and at most 100%, such as 70% or 0.7")
    return share


@dataclass(frozen=True, kw_only=True)
class ScheduleRow:
    """The cost of one schedule."""

    forward: str
    backward: str
    bitops: int
    share: float  # of the reference's BitOPs
    mean_bits: float  # of forward; float32 counts as 32


@dataclass(frozen=True, kw_only=True)
class ScheduleComparison:
    """The costs of several schedules, cheapest first; `str()` is a table."""

    spec: TrainingSpec  # of the first schedule; the others differ in their precision only
    convention: str
    unit: str
    reference: str  # such as "static 8/8"
    reference_bitops: int
    budget: float | None  # as a share of the reference
    rows: tuple[ScheduleRow, ...]
    uncounted: tuple[str, ...]
    notes: tuple[str, ...]

    def is_within(self, row: ScheduleRow) -> bool:
        """Whether a row costs no more than the budget."""
        return self.budget is None or row.share <= self.budget * (1 + 1e-9)  # 56.25% of 56.25%

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types."""
        names = ("convention", "unit", "reference", "reference_bitops", "budget")
        return {
            "model": self.spec.model,
            "options": dict(self.spec.options),
            "total_steps": self.spec.total_steps,
            "batch_size": self.spec.batch_size,
            "skip": list(self.spec.precision.skip),
            **{name: getattr(self, name) for name in names},
            "rows": [{**asdict(row), "within_budget": self.is_within(row)} for row in self.rows],
            "uncounted": list(self.uncounted),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        spec, budget = self.spec, "" if self.budget is None else f"{100 * self.budget:g}%"
        header: tuple[str, ...] = ("schedule", "backward", self.unit, "share", "mean bits")
        rows: list[tuple[str, ...]] = [
            (row.forward, row.backward, f"{row.bitops:.3e}", f"{row.share:.2%}",
             f"{row.mean_bits:.2f}")
            for row in self.rows
        ]  # fmt: skip
        if budget:
            header = (*header, f"within {budget}")
            marks = ["yes" if self.is_within(row) else "no" for row in self.rows]
            rows = [(*cells, mark) for cells, mark in zip(rows, marks, strict=True)]
        lines = [
            f"{spec.model}: {spec.total_steps:,} steps of {spec.batch_size:,} samples, convention "
            f"{self.convention!r}",
            f"share: of {self.reference}, {self.reference_bitops:.3e} {self.unit}",
            text_table(header, rows, right=(2, 3, 4)),
        ]
        cheapest = self.rows[0]
        if not self.is_within(cheapest):
            lines.append(
                f"none is within {budget}; the cheapest, {cheapest.forward} with backward "
                f"{cheapest.backward}, costs {cheapest.share:.2%}"
            )
        if self.uncounted:
            lines += ["not counted:", *(f"  {line}" for line in self.uncounted)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])
