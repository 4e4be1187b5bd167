"""What a model or a recipe costs, by name: built without data, traced once, priced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bitcycle.assign import set_precision
from bitcycle.cost import CONVENTIONS, Cost, measure_saved, training_cost
from bitcycle.nn.base import QuantizedLayer
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.study.subject import Subject

_RING = "aggregation is counted on an example graph of two edges per node, not on the data's"


@dataclass(frozen=True, kw_only=True)
class PricedRun:
    """A subject and its cost; saved_bytes only if it was asked for."""

    subject: Subject
    cost: Cost
    saved_bytes: int | None  # kept for backward, of a step
    saved_kernel: str | None  # that they were measured with; None of a float model too
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Only JSON types."""
        subject = self.subject
        return {
            "model": subject.model,
            "options": dict(subject.options),
            "batch_size": subject.batch_size,
            "precision": {k: v for k, v in subject.precision.given().items() if v != "fp32"},
            "skip": list(subject.precision.skip),
            **self.cost.to_dict(),
            "saved_bytes": self.saved_bytes,
            "saved_kernel": self.saved_kernel,
            "notes": list(self.notes),
        }

    def text(self, *, by_layer: bool = False) -> str:
        """A page: the subject, a table by stage or by layer, what to know."""
        subject, cost = self.subject, self.cost
        given = subject.precision.given().items()
        bits = ", ".join(f"{role} {text}" for role, text in given if text != "fp32") or "float32"
        head = f"{subject.model}: {bits}; {subject.batch_size:,} samples a step"
        lines = [head, cost.layer_table() if by_layer else cost.stage_table()]
        if self.saved_bytes is not None:
            by = "" if self.saved_kernel is None else f" with kernel {self.saved_kernel}"
            lines.append(
                f"kept for backward {self.saved_bytes / 2**20:,.1f} MiB a step (measured{by} on "
                "small batches)"
            )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def price(
    subject: Subject, *, convention: str = "exact", measures_memory: bool = False
) -> PricedRun:
    """The cost of the whole run, before it."""
    model = subject.build(needs_conversion=CONVENTIONS[convention].needs_conversion)
    example = 16 if subject.is_graph else 1
    roles: dict[str, Any] = subject.precision.given()
    cost = training_cost(
        model,
        subject.inputs(model, example),
        **roles,
        total_steps=subject.total_steps,
        samples_per_step=subject.batch_size,
        convention=convention,
    )
    saved, kernel = _measure_saved(subject) if measures_memory else (None, None)
    notes = [_RING] if subject.is_graph and convention == "exact" else []
    return PricedRun(
        subject=subject, cost=cost, saved_bytes=saved, saved_kernel=kernel, notes=tuple(notes)
    )


def _measure_saved(subject: Subject) -> tuple[int, str | None]:
    """Bytes kept for backward at the schedules' tops, and the kernel they were measured with.

    Measured with values, on two small batches: what is kept grows with each sample by the same
    amount, and a batch of 128 may not fit here. "auto" decides by the clock, on this machine and
    for these small batches: simulate takes its place.
    """
    kernel = "simulate" if subject.precision.kernel == "auto" else subject.precision.kernel
    subject = replace(subject, device="cpu", precision=replace(subject.precision, kernel=kernel))
    model = subject.build(needs_conversion=False)
    is_converted = any(isinstance(module, QuantizedLayer) for module in model.modules())
    if is_converted:
        roles: dict[str, Any] = subject.precision.given()
        scheduler = PrecisionScheduler(model, **roles, total_steps=subject.total_steps)
        set_precision(model, scheduler.top)
    small, large = 2, 4
    if subject.is_graph:
        small, large = 16, 32
    few, more = (
        measure_saved(model, subject.inputs(model, size)).num_bytes for size in (small, large)
    )
    num_bytes = few + (more - few) * (subject.batch_size - small) // (large - small)
    return num_bytes, kernel if is_converted else None
