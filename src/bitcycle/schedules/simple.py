"""Schedules without cycles: `Static` bits, a `Ramp`, and `Stages`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from bitcycle.bits import Bits, PlainBits
from bitcycle.schedules.base import (
    SCHEDULES,
    Ranged,
    Schedule,
    ScheduleInfo,
    Time,
    check_ends,
    check_time,
    levels_words,
    time_text,
    to_spans,
    to_step,
)


@SCHEDULES.register("static")
@dataclass(frozen=True, eq=False, repr=False)
class Static(Schedule):
    """The same bits at every step; a format such as "nvfp4", or None for float32.

    >>> Static(8)(0, 10), str(Static(8)), str(Static("nvfp4")), str(Static(None))
    (8, '8', 'nvfp4', 'fp32')
    """

    bits: PlainBits

    grammar: ClassVar[str] = ":bits"
    forms: ClassVar[tuple[str, ...]] = ("8", "static:8", "fp32")

    def __init__(self, bits: PlainBits | str) -> None:
        object.__setattr__(self, "bits", Bits.of(bits).plain)

    @property
    def levels(self) -> tuple[PlainBits, ...]:
        return (self.bits,)

    def bits_at(self, step: int, total_steps: int) -> PlainBits:
        return self.bits

    def turns(self, total_steps: int) -> tuple[int, ...]:
        return (0,)

    def describe(self) -> str:
        unit = " bits" if isinstance(self.bits, int) else ""
        return f"{Bits.of(self.bits)}{unit} throughout"

    @classmethod
    def infos(cls) -> list[ScheduleInfo]:
        return [
            ScheduleInfo("static", None, "8", "The same bits, or a format such as nvfp4"),
            ScheduleInfo("fp32", None, "fp32", "Float32 at every step"),
        ]

    def __str__(self) -> str:
        return str(Bits.of(self.bits))


@SCHEDULES.register("ramp")
@dataclass(frozen=True, eq=False, repr=False)
class Ramp(Ranged):
    """Bits that rise level by level in equal stages from low to high, then stay high.

    until: the end of the rise, a step count (int) or a fraction of the run (float). CPT calls this
    progressive precision (Fig. 1).

    >>> Ramp(3, 8, until=0.5).values(12)
    [3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8]
    """

    until: Time = 0.5

    grammar: ClassVar[str] = ":levels@until"
    forms: ClassVar[tuple[str, ...]] = ("ramp:3-8@0.5", "ramp:4,8,fp32@0.5")
    is_open: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_time(self.until, "until")

    def check_span(self, total_steps: int) -> None:
        to_step(self.until, total_steps, "until =")

    def bits_at(self, step: int, total_steps: int) -> PlainBits:
        end = to_step(self.until, total_steps, "until =")
        return self.levels[step * len(self.levels) // end] if step < end else self.high

    def turns(self, total_steps: int) -> tuple[int, ...]:
        return (0,)

    def notes_over(self, total_steps: int) -> list[str]:
        end, num_levels = to_step(self.until, total_steps, "until ="), len(self.levels)
        if end >= num_levels:
            return []
        return [
            f"{self} skips some of its {num_levels} levels: it has {end} steps in a run of "
            f"{total_steps:,}; ramp for longer or use more steps"
        ]

    def describe(self) -> str:
        return f"level by level {levels_words(self.levels)} until {time_text(self.until)}"


@SCHEDULES.register("stages")
@dataclass(frozen=True, eq=False, repr=False)
class Stages(Schedule):
    """Constant bits, each until an end point.

    Takes pairs (bits, end point). An end point is a step count (int) or a fraction of the run
    (float), counted from the start of the run. The last is 1.0.

    >>> Stages([(16, 0.25), (8, 6), (4, 1.0)]).values(8)
    [16, 16, 8, 8, 8, 8, 4, 4]
    >>> str(Stages([(3, 0.5), (None, 1.0)])), str(Stages([("nvfp4", 0.82), ("bf16", 1.0)]))
    ('stages:3@0.5,fp32', 'stages:nvfp4@0.82,bf16')
    """

    stages: tuple[tuple[PlainBits, Time], ...]

    grammar: ClassVar[str] = ":stages"
    forms: ClassVar[tuple[str, ...]] = ("stages:3@0.5,8",)
    is_open: ClassVar[bool] = True

    def __init__(self, stages: Iterable[tuple[PlainBits | str, Time]]) -> None:
        pairs = check_pairs(stages, "stages", "(bits, end point)")
        checked = (
            (Bits.of(bits, f"bits of stage {number}").plain, end)
            for number, (bits, end) in enumerate(pairs, 1)
        )
        object.__setattr__(self, "stages", tuple(checked))
        check_ends(tuple(end for _, end in self.stages), "stages")

    @property
    def levels(self) -> tuple[PlainBits, ...]:
        return tuple(bits for bits, _ in self.stages)

    def _spans(self, total_steps: int) -> list[tuple[int, int]]:
        return to_spans(tuple(end for _, end in self.stages), total_steps, "stages")

    def check_span(self, total_steps: int) -> None:
        self._spans(total_steps)

    def bits_at(self, step: int, total_steps: int) -> PlainBits:
        spans = self._spans(total_steps)
        return next(b for b, (_, stop) in zip(self.levels, spans, strict=True) if step < stop)

    def turns(self, total_steps: int) -> list[int]:
        return [start for start, _ in self._spans(total_steps)]

    def notes_over(self, total_steps: int) -> list[str]:
        spans = self._spans(total_steps)
        return [
            f"stage {number} of {self} ({Bits.of(bits)}) has no step in a run of {total_steps:,}"
            for number, (bits, (start, stop)) in enumerate(zip(self.levels, spans, strict=True), 1)
            if start == stop
        ]

    def describe(self) -> str:
        *before, (last, _) = self.stages
        pieces = [f"{Bits.of(bits)} until {time_text(end)}" for bits, end in before]
        return ", ".join([*pieces, f"{Bits.of(last)} to the end"])


def check_pairs(pairs: object, what: str, form: str) -> tuple[tuple[Any, Any], ...]:
    """Return a list or tuple of pairs as a tuple; otherwise raise."""
    if isinstance(pairs, list | tuple):
        items = [tuple(pair) if isinstance(pair, list | tuple) else () for pair in pairs]
        if all(len(pair) == 2 for pair in items):
            return tuple((first, second) for first, second in items)
    raise ValueError(f"{what} must be a list of pairs {form}, got {pairs!r:.200}")
