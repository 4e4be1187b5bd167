"""The cost of one run before it: `estimate_cost` builds its model without data and counts it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bitcycle.cost import CONVENTIONS, Cost, measure_saved, training_cost
from bitcycle.model_precision import is_converted, set_precision
from bitcycle.scheduler import PrecisionScheduler
from bitcycle_lab.cost.spec import TrainingSpec

_GRAPH_NOTE = "aggregation is counted on an example graph of two edges per node"


def estimate_cost(
    spec: TrainingSpec, *, convention: str = "exact", measures_memory: bool = False
) -> RunCost:
    """Count the cost of a whole run before it."""
    model = spec.build(needs_conversion=CONVENTIONS[convention].needs_conversion)
    roles: dict[str, Any] = spec.precision.schedule_texts()
    cost = training_cost(
        model,
        spec.inputs(model, spec.example_size),
        **roles,
        total_steps=spec.total_steps,
        samples_per_step=spec.samples_per_step,
        convention=convention,
        backward_operands=spec.precision.backward_operands,
    )
    saved, kernel = _measure_saved(spec) if measures_memory else (None, None)
    return RunCost(
        spec=spec,
        cost=cost,
        saved_bytes=saved,
        saved_kernel=kernel,
        notes=notes_of(spec, convention),
    )


def notes_of(spec: TrainingSpec, convention: str) -> tuple[str, ...]:
    """What to know about a count, in sentences without a full stop."""
    return (_GRAPH_NOTE,) if spec.is_graph and convention == "exact" else ()


def _measure_saved(spec: TrainingSpec) -> tuple[int, str | None]:
    """Bytes kept for backward at the tops of the schedules, and the kernel of the measurement.

    Two small batches are measured and extrapolated, since the bytes grow linearly with the samples
    and the whole batch may not fit into memory. "auto" would choose kernels by the shapes of
    these small batches, so simulate replaces it.
    """
    kernel = "simulate" if spec.precision.kernel == "auto" else spec.precision.kernel
    spec = replace(spec, device="cpu", precision=replace(spec.precision, kernel=kernel))
    model = spec.build(needs_conversion=False)
    if is_converted(model):
        roles: dict[str, Any] = spec.precision.schedule_texts()
        scheduler = PrecisionScheduler(
            model,
            **roles,
            total_steps=spec.total_steps,
            backward_operands=spec.precision.backward_operands,
        )
        set_precision(model, scheduler.top)
    small, large = 2, 4
    if spec.is_graph:
        small, large = 16, 32
    few, more = (
        measure_saved(model, spec.inputs(model, size)).num_bytes for size in (small, large)
    )
    num_bytes = few + (more - few) * (spec.batch_size - small) // (large - small)
    return num_bytes, kernel if is_converted(model) else None


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The cost of a run before it, and optionally the bytes that a step keeps for backward."""

    spec: TrainingSpec
    cost: Cost
    saved_bytes: int | None  # None if not measured
    saved_kernel: str | None  # the kernel of that measurement; None also for a float model
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types."""
        spec = self.spec
        return {
            "model": spec.model,
            "options": dict(spec.options),
            "batch_size": spec.batch_size,
            "precision": spec.shown_bits(),
            "skip": list(spec.precision.skip),
            **self.cost.to_dict(),
            "saved_bytes": self.saved_bytes,
            "saved_kernel": self.saved_kernel,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return self.text()

    def text(self, *, by_layer: bool = False) -> str:
        """The model and its bits, the cost by stage or by layer, and notes."""
        spec, cost = self.spec, self.cost
        bits = ", ".join(f"{role} {text}" for role, text in spec.shown_bits().items()) or "float32"
        head = f"{spec.model}: {bits}; {spec.batch_size:,} samples a step"
        lines = [head, cost.layer_table() if by_layer else cost.stage_table()]
        if self.saved_bytes is not None:
            by = "" if self.saved_kernel is None else f" with kernel {self.saved_kernel}"
            lines.append(
                f"kept for backward {self.saved_bytes / 2**20:,.1f} MiB a step (measured{by} on "
                "small batches)"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])
