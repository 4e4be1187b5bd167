"""Schedules made of schedules: `Delay` starts one late, `Sequence` runs several in turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from bitcycle.schedules.base import (
    SCHEDULES,
    Bits,
    Schedule,
    ScheduleInfo,
    Time,
    bits_text,
    check_depth,
    check_ends,
    check_time,
    highest,
    lowest,
    time_text,
    to_spans,
    to_step,
)
from bitcycle.schedules.simple import check_pairs
from bitcycle.schedules.text import ScheduleLike, parse_schedule

if TYPE_CHECKING:
    from bitcycle.schedules.text import Reader


@SCHEDULES.register("delay")
@dataclass(frozen=True, eq=False)
class Delay(Schedule):
    """The lowest bits until a point of the run, then a schedule over the rest (CPT, Table 7).

    The inner schedule runs all its cycles in the remaining steps. With start = 1.0 it never starts.

    >>> Delay("CR:3-8:1", start=0.25).values(12)
    [3, 3, 3, 3, 3, 4, 4, 5, 6, 7, 7, 8]
    """

    schedule: Schedule
    start: Time

    forms: ClassVar[tuple[str, ...]] = ("delay@0.25(CR:3-8:32)",)

    def __init__(self, schedule: ScheduleLike, start: Time) -> None:
        object.__setattr__(self, "schedule", parse_schedule(schedule))
        object.__setattr__(self, "start", check_time(start, "start"))
        check_depth(self.parts())

    @property
    def low(self) -> Bits:
        return self.schedule.low

    @property
    def high(self) -> Bits:
        return self.schedule.high

    def parts(self) -> tuple[Schedule, ...]:
        return (self.schedule,)

    def _first(self, total_steps: int) -> int:
        return to_step(self.start, total_steps, "start =")

    def check_span(self, total_steps: int) -> None:
        if span := total_steps - self._first(total_steps):
            self.schedule.check_span(span)

    def bits_at(self, step: int, total_steps: int) -> Bits:
        first = self._first(total_steps)
        if step < first:
            return self.low
        return self.schedule.bits_at(step - first, total_steps - first)

    def values_over(self, total_steps: int) -> list[Bits]:
        first = self._first(total_steps)
        after = self.schedule.values_over(total_steps - first) if first < total_steps else []
        return [self.low] * first + after

    def notes_over(self, total_steps: int) -> list[str]:
        if span := total_steps - self._first(total_steps):
            return self.schedule.notes_over(span)
        if self.start == 1.0 and isinstance(self.start, float):
            return []  # intended
        return [f"{self} never starts: {time_text(self.start)} is the end of {total_steps:,} steps"]

    def count_cycles(self, total_steps: int) -> int:
        span = total_steps - self._first(total_steps)
        return self.schedule.count_cycles(span) if span else 0

    def text(self) -> str:
        return f"delay@{self.start!r}({self.schedule})"

    def describe(self) -> str:
        return (
            f"{bits_text(self.low)} until {time_text(self.start)}, then {self.schedule.describe()}"
        )

    @classmethod
    def read(cls, head: str, reader: Reader) -> Self:
        reader.expect("@", "where it starts")
        start = reader.time("where it starts")
        reader.expect("(", "the delayed schedule in parentheses")
        inner = reader.schedule()
        reader.expect(")", "the closing parenthesis")
        return cls(inner, start)


@SCHEDULES.register("sequence")
@dataclass(frozen=True, eq=False)
class Sequence(Schedule):
    """Schedules one after another, each until an end point.

    Takes pairs (schedule, end point). Each schedule runs over the steps of its part. An end point
    is a step count (int) or a fraction of the run (float), counted from the start of the run. The
    last is 1.0.

    >>> Sequence([("CR:3-8:2", 0.8), ("fp32", 1.0)]).values(10)
    [3, 4, 6, 7, 3, 4, 6, 7, None, None]
    """

    schedules: tuple[tuple[Schedule, Time], ...]

    forms: ClassVar[tuple[str, ...]] = ("seq(CR:3-8:8@0.8, fp32)",)

    def __init__(self, schedules: Iterable[tuple[ScheduleLike, Time]]) -> None:
        pairs = check_pairs(schedules, "a sequence", "(schedule, end point)")
        pairs = tuple((parse_schedule(inner), end) for inner, end in pairs)
        object.__setattr__(self, "schedules", pairs)
        check_ends(self._ends, "a sequence")
        check_depth(self.parts())

    @property
    def _ends(self) -> tuple[Time, ...]:
        return tuple(end for _, end in self.schedules)

    @property
    def low(self) -> Bits:
        return lowest(part.low for part in self.parts())

    @property
    def high(self) -> Bits:
        return highest(part.high for part in self.parts())

    def parts(self) -> tuple[Schedule, ...]:
        return tuple(inner for inner, _ in self.schedules)

    def _spans(self, total_steps: int) -> list[tuple[Schedule, int, int]]:
        spans = to_spans(self._ends, total_steps, "a sequence")
        return [(part, *span) for part, span in zip(self.parts(), spans, strict=True)]

    def check_span(self, total_steps: int) -> None:
        for part, start, stop in self._spans(total_steps):
            if start < stop:
                part.check_span(stop - start)

    def bits_at(self, step: int, total_steps: int) -> Bits:
        part, start, stop = next(one for one in self._spans(total_steps) if step < one[2])
        return part.bits_at(step - start, stop - start)

    def values_over(self, total_steps: int) -> list[Bits]:
        spans = [one for one in self._spans(total_steps) if one[1] < one[2]]
        return [bits for part, start, stop in spans for bits in part.values_over(stop - start)]

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
        spans = [one for one in self._spans(total_steps) if one[1] < one[2]]
        return sum(part.count_cycles(stop - start) for part, start, stop in spans)

    def text(self) -> str:
        pieces = []
        for part, end in self.schedules:
            piece = f"({part})" if part.is_open else str(part)
            pieces.append(f"{piece}@{end!r}")
        pieces[-1] = pieces[-1].removesuffix("@1.0")
        return f"seq({', '.join(pieces)})"

    def describe(self) -> str:
        *before, (last, _) = self.schedules
        pieces = [f"({part.describe()}) until {time_text(end)}" for part, end in before]
        return ", ".join([*pieces, f"({last.describe()}) to the end"])

    @classmethod
    def infos(cls) -> list[ScheduleInfo]:
        [info] = super().infos()
        return [ScheduleInfo("seq", info.tier, info.form, info.summary)]

    @classmethod
    def read(cls, head: str, reader: Reader) -> Self:
        reader.expect("(", "the schedules in parentheses")
        parts: list[tuple[Schedule, Time]] = []
        while True:
            at = reader.position()
            is_grouped = reader.is_next("(")
            part = reader.schedule()
            if part.is_open and not is_grouped:
                reader.fail(at, f"inside seq, write it in parentheses, such as ({part})@0.5")
            end = reader.time("where this part ends") if reader.accept("@") else 1.0
            parts.append((part, end))
            if not reader.accept(","):
                reader.expect(")", "a comma or the closing parenthesis")
                return cls(tuple(parts))
