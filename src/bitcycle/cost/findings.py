"""What the CPT paper's tables report for or against a schedule.

`bitcycle plan` shows these findings next to the cost of a schedule. Every number is computed from
the tables in `bitcycle.published`. A schedule that no table reports has no finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Literal, NamedTuple

from bitcycle.published import display_name, read_table
from bitcycle.schedules import Anneal, Cycle, Delay, Schedule, Stages, Static, Triangle
from bitcycle.schedules.base import bits_text

Stance = Literal["for", "against", "mixed"]
Unit = Literal["%", "ppl"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One published result: whether it speaks for the schedule, what it says, and its table."""

    stance: Stance
    text: str
    source: str


def find_findings(forward: Schedule, backward: Schedule) -> tuple[Finding, ...]:
    """What the tables report about a forward schedule, and about a schedule of the errors.

    Errors are the gradients with respect to a layer's output. A table's values are quoted if they
    are at the same bits; otherwise the finding summarizes those at other bits.

    >>> [finding.source for finding in find_findings(Cycle(3, 8, 32), Static(8))]
    ['CPT Table 2']
    >>> find_findings(Cycle(3, 8, 32, profile="rex"), Static(8))
    ()
    """
    found: list[Finding] = []
    error = bits_text(backward.bits) if isinstance(backward, Static) else str(backward)
    bits = f"{forward.low}-{forward.high}/{error}"
    if isinstance(forward, Static):
        found += _static_findings(f"{bits_text(forward.bits)}/{error}")
    elif _is_cosine(forward):
        pairs = [pair for pair in cycled_pairs() if pair.bits == bits]
        static = f"static {bits_text(forward.high)}/{error}"
        what = f"CR at {bits}, 32 cycles, against {static}"
        found.append(_quote(pairs, what) if pairs else _cycles_at_other_bits())
    elif isinstance(forward, Delay) and _is_cosine(forward.schedule):
        pairs = [pair for pair in delayed_pairs(forward.start) if pair.bits == bits]
        what = f"CR at {bits}, started at {forward.start:g} of the run, against at once"
        found.append(_quote(pairs, what) if pairs else _delays_at_other_bits())
    elif isinstance(forward, Stages):
        found.append(_stages())
    elif isinstance(forward, Triangle | Anneal):
        found.append(_shape(forward.head))
    if isinstance(backward, Cycle):
        found.append(_cycled_errors())
    return tuple(found)


def _is_cosine(schedule: Schedule) -> bool:
    return isinstance(schedule, Cycle) and schedule.head == "CR"


# -- the tables -----------------------------------------------------------------------------------


class PublishedPair(NamedTuple):
    """A published value and its baseline: accuracy in %, or perplexity."""

    source: str
    model: str
    data: str
    bits: str
    value: float
    baseline: float
    unit: Unit = "%"

    @property
    def is_better(self) -> bool:
        """Whether the value beats the baseline: more accuracy, less perplexity."""
        return self.value < self.baseline if self.unit == "ppl" else self.value > self.baseline


@cache
def _read_values() -> dict[tuple[str, str, str, Unit], dict[str, float]]:
    """Tables 2 to 5: (source, model, data, unit) -> value by bits, of CPT and of static bits."""
    values: dict[tuple[str, str, str, Unit], dict[str, float]] = {}

    def add(source: str, row: dict[str, str], data: str, column: str, unit: Unit = "%") -> None:
        if row["method"] in ("cpt", "sbm", "full"):
            bits = row.get("precision_fw_bw") or f"{row['precision']}/fp32"  # Table 4
            key = source, display_name(row["model"]), display_name(data), unit
            values.setdefault(key, {})[bits] = float(row[column])

    for row in read_table("table2_cifar"):
        add("CPT Table 2", row, "cifar10", "cifar10_accuracy")
        add("CPT Table 2", row, "cifar100", "cifar100_accuracy")
    for row in read_table("table3_imagenet"):
        add("CPT Table 3", row, "imagenet", "accuracy")
    for row in read_table("table4_imagenet_full_precision"):
        add("CPT Table 4", row, "imagenet", "accuracy")
    for row in read_table("table5_language"):
        add("CPT Table 5", row, row["dataset"], "perplexity", "ppl")
    return values


@cache
def cycled_pairs() -> tuple[PublishedPair, ...]:
    """Tables 2 to 5: cosine cycles, N = 32, over static bits at the same top."""
    return tuple(
        PublishedPair(source, model, data, bits, value, by_bits[bits.partition("-")[2]], unit)
        for (source, model, data, unit), by_bits in _read_values().items()
        for bits, value in by_bits.items()
        if "-" in bits
    )


@cache
def static_pairs() -> tuple[PublishedPair, ...]:
    """Tables 2, 3 and 5: static bits over static 8/8."""
    return tuple(
        PublishedPair(source, model, data, bits, value, by_bits["8/8"], unit)
        for (source, model, data, unit), by_bits in _read_values().items()
        for bits, value in by_bits.items()
        if "8/8" in by_bits and bits != "8/8" and "-" not in bits
    )


@cache
def delayed_pairs(start: float) -> tuple[PublishedPair, ...]:
    """Table 7: cosine cycles from `start` of the run on over the same cycles from step 0 on.

    Before the start the bits are at the lowest; start = 1.0 leaves them there.
    """
    by_start: dict[float, dict[tuple[str, str], float]] = {}
    for row in read_table("table7_delayed_start"):
        values = by_start.setdefault(int(row["start_epoch_of_160"]) / 160, {})
        values[row["model"], row["precision_fw_bw"]] = float(row["accuracy"])
    if start == 0:
        return ()
    return tuple(
        PublishedPair("CPT Table 7", display_name(model), display_name("cifar100"), bits,
                      value, by_start[0][model, bits])
        for (model, bits), value in by_start.get(start, {}).items()
    )  # fmt: skip


# -- the findings ---------------------------------------------------------------------------------


def _stance(is_better: Sequence[bool]) -> Stance:
    """For: better in every cell of the table. Against: better in fewer than half of them."""
    if all(is_better):
        return "for"
    return "against" if 2 * sum(is_better) < len(is_better) else "mixed"


def _quote(pairs: Sequence[PublishedPair], what: str) -> Finding:
    """One sentence: what is compared with what, and both values of every pair."""
    models = [
        f"{model} "
        + ", ".join(f"{p.value:.2f} / {p.baseline:.2f} {p.unit} ({p.data})" for p in group)
        for model, group in groupby(pairs, key=lambda pair: pair.model)
    ]
    return Finding(
        stance=_stance([pair.is_better for pair in pairs]),
        text=f"{what}: {'; '.join(models)}",
        source=", ".join(dict.fromkeys(pair.source for pair in pairs)),
    )


def _static_findings(bits: str) -> list[Finding]:
    pairs = [pair for pair in static_pairs() if pair.bits == bits]
    found = [_quote(pairs, f"static {bits} against static 8/8")] if pairs else []
    # cycles that never start are static at their lowest bits
    never = [pair for pair in delayed_pairs(1.0) if f"{pair.bits[0]}/{pair.bits[-1]}" == bits]
    if never:
        found.append(_quote(never, f"static {bits} against CR at {never[0].bits}"))
    return found


@cache
def _cycles_at_other_bits() -> Finding:
    is_better = [pair.is_better for pair in cycled_pairs()]
    return Finding(
        stance=_stance(is_better),
        text="CR, 32 cycles, at other bits: better than static bits at the same top in "
        f"{sum(is_better)} of {len(is_better)} cells",
        source="CPT Tables 2 to 5",
    )


@cache
def _delays_at_other_bits() -> Finding:
    epochs = {int(row["start_epoch_of_160"]) for row in read_table("table7_delayed_start")}
    pairs = [pair for epoch in epochs - {0, 160} for pair in delayed_pairs(epoch / 160)]
    losses = [pair.baseline - pair.value for pair in pairs]
    assert min(losses) > 0  # the text says so
    return Finding(
        stance=_stance([pair.is_better for pair in pairs]),
        text="cycles that start late, at other bits: behind those that start at once in all "
        f"{len(pairs)} cells, by {min(losses):.2f} to {max(losses):.2f} points (ResNet-38 and -74, "
        "CIFAR-100)",
        source="CPT Table 7",
    )


@cache
def _shape(shape: str) -> Finding:
    """Table 6: the triangle, or annealing, against cosine cycles."""
    accuracy = {
        (row["schedule"], row["model"], row["precision_fw_bw"]): float(row["accuracy"])
        for row in read_table("table6_schedule_shapes")
    }
    cells = [cell for name, *cell in accuracy if name == "cosine"]
    is_better = [accuracy[shape, *cell] > accuracy["cosine", *cell] for cell in cells]  # type: ignore[index]
    name = {"triangle": "the triangle", "anneal": "cosine annealing"}[shape]
    return Finding(
        stance=_stance(is_better),
        text=f"{name} against the cosine cycle CR, CIFAR-100, ResNet-74 and -164 (3-8/8, 3-6/6), "
        f"MobileNetV2 (4-8/8, 4-6/6): ahead in {sum(is_better)} of {len(is_better)} cells",
        source="CPT Table 6",
    )


@cache
def _stages() -> Finding:
    """Table 1: low precision first, then float32, at several learning rates."""
    accuracy = {
        (row["model"], row["first_stage_lr"], row["first_stage_bits"]): float(row["accuracy"])
        for row in read_table("table1_lr_vs_precision")
    }

    def is_better(lr: str) -> list[bool]:
        return [
            value > accuracy[model, rate, "fp32"]
            for (model, rate, bits), value in accuracy.items()
            if rate == lr and bits != "fp32"
        ]

    large, small = is_better("0.1"), is_better("0.01")
    return Finding(
        stance=_stance(large + small),
        text="4, 6 or 8 bits for the first half, then float32, against float32 throughout "
        "(ResNet-38 and -74, CIFAR-100; error bits unpublished): behind in "
        f"{len(large) - sum(large)} of {len(large)} cells when the first half has learning rate "
        f"0.1, ahead in {sum(small)} of {len(small)} when it has 0.01",
        source="CPT Table 1",
    )


@cache
def _cycled_errors() -> Finding:
    """Table 8: the bits of the errors cycle instead of the forward ones."""
    accuracy = {row["bw"]: float(row["accuracy"]) for row in read_table("table8_gradient_cycling")}
    cycled = [value for bits, value in accuracy.items() if "-" in bits]
    return Finding(
        stance=_stance([value > accuracy["8"] for value in cycled]),
        text="cycled error bits, forward static 6 (ResNet-74, CIFAR-100): "
        f"{min(cycled):.2f} to {max(cycled):.2f} % with errors cycled from 6 to 8, 10, 12 or 16, "
        f"against {accuracy['6']:.2f} % at static 6/6 and {accuracy['8']:.2f} % at static 6/8",
        source="CPT Table 8",
    )
