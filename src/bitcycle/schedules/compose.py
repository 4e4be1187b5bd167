"""Schedules made of schedules: `Delay` starts one late, `Sequence` runs several in turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from bitcycle.bits import Bits, PlainBits
from bitcycle.schedules.base import (
    SCHEDULES,
    Levels,
    Schedule,
    Time,
    check_depth,
    check_ends,
    check_time,
    time_text,
    to_spans,
    to_step,
)
from bitcycle.schedules.simple import check_pairs
from bitcycle.schedules.text import ScheduleLike, parse_schedule


@SCHEDULES.register("delay")
@dataclass(frozen=True, eq=False, repr=False)
class Delay(Schedule):
    """The lowest bits until a point of the run, then a schedule over the rest (CPT, Table 7).

    The inner schedule runs all its cycles in the remaining steps. With start = 1.0 it never starts.

    >>> Delay("CR:3-8:1", start=0.25).values(12)
    [3, 3, 3, 3, 3, 4, 4, 5, 6, 7, 7, 8]
    """

    schedule: Schedule
    start: Time

    grammar: ClassVar[str] = "@start(schedule)"
    forms: ClassVar[tuple[str, ...]] = ("delay@0.25(CR:3-8:32)",)

    def __init__(self, schedule: ScheduleLike, start: Time) -> None:
        object.__setattr__(self, "schedule", parse_schedule(schedule))
        object.__setattr__(self, "start", check_time(start, "start"))
        object.__setattr__(self, "_lows", {})  # of a schedule without levels, by steps
        check_depth(self.parts())

    @property
    def levels(self) -> Levels:
        return self.schedule.levels

    def parts(self) -> tuple[Schedule, ...]:
        return (self.schedule,)

    def _first(self, total_steps: int) -> int:
        return to_step(self.start, total_steps, "start =")

    def check_span(self, total_steps: int) -> None:
        if span := total_steps - self._first(total_steps):
            self.schedule.check_span(span)

    def bits_at(self, step: int, total_steps: int) -> PlainBits:
        first = self._first(total_steps)
        if step < first:
            return self._low_over(total_steps - first)
        return self.schedule.bits_at(step - first, total_steps - first)

    def _low_over(self, span: int) -> PlainBits:
        """The lowest bits of the schedule over the steps that are left to it."""
        if self.schedule.has_levels:
            return self.schedule.low
        lows: dict[int, PlainBits] = vars(self)["_lows"]
        if span not in lows:
            lows[span] = self.schedule.over(max(1, span)).low
        return lows[span]

    def turns(self, total_steps: int) -> list[int]:
        first = self._first(total_steps)
        after = self.schedule.turns(total_steps - first) if first < total_steps else ()
        return [0, *(first + turn for turn in after)]

    def notes_over(self, total_steps: int) -> list[str]:
        if span := total_steps - self._first(total_steps):
            return self.schedule.notes_over(span)
        if self.start == 1.0 and isinstance(self.start, float):
            return []  # intended
        return [f"{self} never starts: {time_text(self.start)} is the end of {total_steps:,} steps"]

    def count_cycles(self, total_steps: int) -> int:
        span = total_steps - self._first(total_steps)
        return self.schedule.count_cycles(span) if span else 0

    def describe(self) -> str:
        low = Bits.of(self.low) if self.has_levels else "its lowest bits"
        start = f"{low} until {time_text(self.start)}"
        return f"{start}, then {self.schedule.describe()}"


@SCHEDULES.register("sequence")
@dataclass(frozen=True, eq=False, repr=False)
class Sequence(Schedule):
    """Schedules one after another, each until an end point.

    Takes pairs (schedule, end point). Each schedule runs over the steps of its part. An end point
    is a step count (int) or a fraction of the run (float), counted from the start of the run. The
    last is 1.0.

    >>> Sequence([("CR:3-8:2", 0.8), ("fp32", 1.0)]).values(10)
    [3, 4, 6, 7, 3, 4, 6, 7, None, None]
    """

    schedules: tuple[tuple[Schedule, Time], ...]

    grammar: ClassVar[str] = "(schedules)"
    forms: ClassVar[tuple[str, ...]] = ("seq(CR:3-8:8@0.8, fp32)",)

    def __init__(self, schedules: Iterable[tuple[ScheduleLike, Time]]) -> None:
        pairs = check_pairs(schedules, "a sequence", "(schedule, end point)")
        pairs = tuple((parse_schedule(inner), end) for inner, end in pairs)
        object.__setattr__(self, "schedules", pairs)
        check_ends(tuple(end for _, end in pairs), "a sequence")
        check_depth(self.parts())

    @property
    def levels(self) -> tuple[PlainBits, ...]:
        return tuple(bits for part in self.parts() for bits in part.levels)

    def parts(self) -> tuple[Schedule, ...]:
        return tuple(inner for inner, _ in self.schedules)

    def _spans(self, total_steps: int) -> list[tuple[Schedule, int, int]]:
        """(part, first step, step after the last) of every part."""
        spans = to_spans(tuple(end for _, end in self.schedules), total_steps, "a sequence")
        return [(part, *span) for part, span in zip(self.parts(), spans, strict=True)]

    def _used(self, total_steps: int) -> list[tuple[Schedule, int, int]]:
        """The parts that have steps in a run of this length."""
        return [one for one in self._spans(total_steps) if one[1] < one[2]]

    def check_span(self, total_steps: int) -> None:
        for part, start, stop in self._used(total_steps):
            part.check_span(stop - start)

    def bits_at(self, step: int, total_steps: int) -> PlainBits:
        part, start, stop = next(one for one in self._spans(total_steps) if step < one[2])
        return part.bits_at(step - start, stop - start)

    def turns(self, total_steps: int) -> list[int]:
        used = self._used(total_steps)
        return [start + turn for part, start, stop in used for turn in part.turns(stop - start)]

    def notes_over(self, total_steps: int) -> list[str]:
        notes = []
        for number, (part, start, stop) in enumerate(self._spans(total_steps), 1):
            if start < stop:
                notes += part.notes_over(stop - start)
            else:
                notes.append(
                    f"part {number} of {self} ({part}) has no step in a run of {total_steps:,}"
                )
        return notes

    def count_cycles(self, total_steps: int) -> int:
        used = self._used(total_steps)
        return sum(part.count_cycles(stop - start) for part, start, stop in used)

    def describe(self) -> str:
        *before, (last, _) = self.schedules
        pieces = [f"({part.describe()}) until {time_text(end)}" for part, end in before]
        return ", ".join([*pieces, f"({last.describe()}) to the end"])

    @classmethod
    def names(cls) -> dict[str, dict[str, Any]]:
        return {"seq": {}}
