"""What has been published for or against a schedule: accuracies of the CPT paper's tables.

Only what a table states is said, with the table's name; a schedule that none measures has no
finding. Every number is a cell of the tables that the recipes carry, and a test holds them equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from bitcycle.schedules import Anneal, Cycle, Delay, Schedule, Stages, Static, Triangle
from bitcycle.schedules.base import bits_text

Stance = Literal["for", "against", "mixed"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One published result, where it stands, and on which side of the schedule it is."""

    stance: Stance
    text: str
    source: str


class Cell(NamedTuple):
    """A value of a table next to the one it is compared with: % (more is better) or ppl."""

    source: str
    model: str
    data: str
    bits: str
    value: float
    other: float
    unit: Literal["%", "ppl"] = "%"

    @property
    def is_better(self) -> bool:
        """Whether the value beats the other."""
        return self.value < self.other if self.unit == "ppl" else self.value > self.other


# cosine cycles, N = 32, and static bits at the same top
CYCLED = (
    Cell("CPT Table 2", "ResNet-74", "CIFAR-10", "3-8/8", 93.23, 92.57),
    Cell("CPT Table 2", "ResNet-74", "CIFAR-100", "3-8/8", 72.35, 71.44),
    Cell("CPT Table 2", "ResNet-164", "CIFAR-10", "3-8/8", 93.83, 93.63),
    Cell("CPT Table 2", "ResNet-164", "CIFAR-100", "3-8/8", 72.9, 72.53),
    Cell("CPT Table 2", "ResNet-74", "CIFAR-10", "3-6/6", 92.4, 91.15),
    Cell("CPT Table 2", "ResNet-74", "CIFAR-100", "3-6/6", 70.83, 70.31),
    Cell("CPT Table 2", "ResNet-164", "CIFAR-10", "3-6/6", 93.02, 91.95),
    Cell("CPT Table 2", "ResNet-164", "CIFAR-100", "3-6/6", 71.79, 70.34),
    Cell("CPT Table 2", "MobileNetV2", "CIFAR-10", "4-8/8", 93.76, 93.57),
    Cell("CPT Table 2", "MobileNetV2", "CIFAR-100", "4-8/8", 75.65, 75.28),
    Cell("CPT Table 2", "MobileNetV2", "CIFAR-10", "4-6/6", 91.81, 91.56),
    Cell("CPT Table 2", "MobileNetV2", "CIFAR-100", "4-6/6", 73.18, 72.31),
    Cell("CPT Table 3", "ResNet-18", "ImageNet", "4-8/8", 69.64, 69.6),
    Cell("CPT Table 3", "ResNet-34", "ImageNet", "4-8/8", 73.12, 73.32),
    Cell("CPT Table 3", "ResNet-50", "ImageNet", "4-8/8", 76.35, 76.29),
    Cell("CPT Table 3", "ResNet-18", "ImageNet", "4-6/6", 69.33, 69.3),
    Cell("CPT Table 3", "ResNet-34", "ImageNet", "4-6/6", 72.74, 72.82),
    Cell("CPT Table 3", "ResNet-50", "ImageNet", "4-6/6", 75.74, 75.72),
    Cell("CPT Table 4", "ResNet-18", "ImageNet", "8-32/fp32", 70.67, 69.76),
    Cell("CPT Table 4", "ResNet-34", "ImageNet", "8-32/fp32", 74.14, 73.3),
    Cell("CPT Table 5", "Transformer", "WikiText-103", "4-8/8", 30.22, 31.77, "ppl"),
    Cell("CPT Table 5", "Transformer", "WikiText-103", "4-6/8", 31.0, 32.41, "ppl"),
    Cell("CPT Table 5", "LSTM", "PTB", "5-8/8", 96.39, 96.95, "ppl"),
    Cell("CPT Table 5", "LSTM", "PTB", "5-6/8", 97.0, 97.47, "ppl"),
)

# static bits, and static 8/8
STATIC = (
    Cell("CPT Table 2", "ResNet-74", "CIFAR-10", "6/6", 91.15, 92.57),
    Cell("CPT Table 2", "ResNet-74", "CIFAR-100", "6/6", 70.31, 71.44),
    Cell("CPT Table 2", "ResNet-164", "CIFAR-10", "6/6", 91.95, 93.63),
    Cell("CPT Table 2", "ResNet-164", "CIFAR-100", "6/6", 70.34, 72.53),
    Cell("CPT Table 2", "MobileNetV2", "CIFAR-10", "6/6", 91.56, 93.57),
    Cell("CPT Table 2", "MobileNetV2", "CIFAR-100", "6/6", 72.31, 75.28),
    Cell("CPT Table 3", "ResNet-18", "ImageNet", "6/6", 69.3, 69.6),
    Cell("CPT Table 3", "ResNet-34", "ImageNet", "6/6", 72.82, 73.32),
    Cell("CPT Table 3", "ResNet-50", "ImageNet", "6/6", 75.72, 76.29),
    Cell("CPT Table 5", "Transformer", "WikiText-103", "6/8", 32.41, 31.77, "ppl"),
    Cell("CPT Table 5", "LSTM", "PTB", "6/8", 97.47, 96.95, "ppl"),
)

# the lowest bits until a share of the run, then cosine cycles; and those cycles from the start on.
# Share 1.0 never starts: the lowest bits throughout.
DELAYED = {
    0.375: (69.6, 68.65, 70.55, 70.32),
    0.5: (68.37, 68.0, 69.44, 69.25),
    0.625: (68.04, 67.83, 69.19, 68.72),
    0.75: (67.65, 67.85, 68.96, 68.56),
    1.0: (62.3, 62.3, 64.2, 64.2),
}
UNDELAYED = (
    ("ResNet-38", "3-8/8", 70.24),
    ("ResNet-38", "3-6/6", 69.3),
    ("ResNet-74", "3-8/8", 72.35),
    ("ResNet-74", "3-6/6", 70.83),
)

SHAPES = {
    "triangle": Finding(
        stance="mixed",
        text="the triangle against the cosine cycle CR, CIFAR-100, ResNet-74 and -164 (3-8/8, "
        "3-6/6), MobileNetV2 (4-8/8, 4-6/6): ahead in 3 of 6 cells",
        source="CPT Table 6",
    ),
    "anneal": Finding(
        stance="against",
        text="cosine annealing against the cosine cycle CR, CIFAR-100, ResNet-74 and -164 (3-8/8, "
        "3-6/6), MobileNetV2 (4-8/8, 4-6/6): ahead in 1 of 6 cells",
        source="CPT Table 6",
    ),
}
STAGED = Finding(
    stance="mixed",
    text="4, 6 or 8 bits for the first half, then float32, against float32 throughout (ResNet-38 "
    "and -74, CIFAR-100; error bits unpublished): behind in 6 of 6 cells when the first half has "
    "learning rate 0.1, ahead in 6 of 6 when it has 0.01",
    source="CPT Table 1",
)
ERRORS = Finding(
    stance="against",
    text="cycled error bits, forward static 6 (ResNet-74, CIFAR-100): 69.45 to 70.32 % with errors "
    "cycled from 6 to 8, 10, 12 or 16, against 70.31 % at static 6/6 and 70.51 % at static 6/8",
    source="CPT Table 8",
)


def find_findings(forward: Schedule, backward: Schedule) -> tuple[Finding, ...]:
    """What the tables say about a forward schedule, and about the errors' schedule.

    Cells at the same bits where there are any; else what cells at other bits have in common.

    >>> [finding.source for finding in find_findings(Cycle(3, 8, 32), Static(8))]
    ['CPT Table 2']
    >>> find_findings(Cycle(3, 8, 32, profile="rex"), Static(8))
    ()
    """
    found: list[Finding] = []
    bits = f"{forward.low}-{forward.high}/{_text(backward)}"
    if isinstance(forward, Static):
        found += _static(forward, backward)
    elif _is_cosine(forward):
        cells = [cell for cell in CYCLED if cell.bits == bits]
        static = f"static {bits_text(forward.high)}/{_text(backward)}"
        found.append(
            _compare(cells, f"CR at {bits}, 32 cycles, against {static}") if cells else _CYCLED
        )
    elif isinstance(forward, Delay) and _is_cosine(forward.schedule):
        cells = _delayed(forward.start, bits)
        what = f"CR at {bits}, started at {forward.start:g} of the run, against at once"
        found.append(_compare(cells, what) if cells else _DELAYED)
    elif isinstance(forward, Stages):
        found.append(STAGED)
    elif isinstance(forward, Triangle | Anneal):
        found.append(SHAPES[forward.head])
    if isinstance(backward, Cycle):
        found.append(ERRORS)
    return tuple(found)


def _static(forward: Static, backward: Schedule) -> list[Finding]:
    bits = f"{bits_text(forward.bits)}/{_text(backward)}"
    cells = [cell for cell in STATIC if cell.bits == bits]
    found = [_compare(cells, f"static {bits} against static 8/8")] if cells else []
    never = [c for c in _delayed(1.0) if bits == f"{c.bits[0]}/{c.bits[-1]}"]
    if never:
        found.append(_compare(never, f"static {bits} against CR at {never[0].bits}"))
    return found


def _delayed(start: float, bits: str | None = None) -> list[Cell]:
    pairs = zip(UNDELAYED, DELAYED.get(start, ()), strict=False)
    return [
        Cell("CPT Table 7", model, "CIFAR-100", cell, value, other)
        for (model, cell, other), value in pairs
        if bits in (cell, None)
    ]


def _compare(cells: Sequence[Cell], what: str) -> Finding:
    """One sentence: what is compared with what, and both values of every cell."""
    models = [
        f"{model} " + ", ".join(f"{c.value:.2f} / {c.other:.2f} {c.unit} ({c.data})" for c in group)
        for model, group in groupby(cells, key=lambda cell: cell.model)
    ]
    return Finding(
        stance=_stance(cells),
        text=f"{what}: {'; '.join(models)}",
        source=", ".join(dict.fromkeys(cell.source for cell in cells)),
    )


def _stance(cells: Sequence[Cell]) -> Stance:
    num_better = sum(cell.is_better for cell in cells)
    return "for" if num_better == len(cells) else "mixed" if num_better else "against"


def _is_cosine(schedule: Schedule) -> bool:
    return isinstance(schedule, Cycle) and schedule.head == "CR"


def _text(backward: Schedule) -> str:
    return bits_text(backward.bits) if isinstance(backward, Static) else str(backward)


_CYCLED = Finding(
    stance="mixed",
    text=f"CR, 32 cycles, at other bits: better than static bits at the same top in "
    f"{sum(cell.is_better for cell in CYCLED)} of {len(CYCLED)} cells",
    source="CPT Tables 2 to 5",
)
_DELAYED = Finding(
    stance="against",
    text="cycles that start late, at other bits: behind those that start at once in all 16 cells, "
    "by 0.51 to 3.39 points (ResNet-38 and -74, CIFAR-100)",
    source="CPT Table 7",
)
