"""Schedules without cycles: `Static` bits, a `Ramp`, and `Stages`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bitcycle.formats.catalogue import parse_format
from bitcycle.precision import check_bits
from bitcycle.schedules.base import (
    SCHEDULES,
    Bits,
    Ranged,
    Schedule,
    ScheduleInfo,
    Time,
    bits_text,
    bits_words,
    check_ends,
    check_range,
    check_time,
    highest,
    lowest,
    time_text,
    to_spans,
    to_step,
)

if TYPE_CHECKING:
    from bitcycle.schedules.text import Reader


@SCHEDULES.register("static")
@dataclass(frozen=True, eq=False)
class Static(Schedule):
    """The same bits at every step; a format such as "nvfp4", or None for float32.

    >>> Static(8)(0, 10), str(Static(8)), str(Static("nvfp4")), str(Static(None))
    (8, '8', 'nvfp4', 'fp32')
    """

    bits: Bits

    forms: ClassVar[tuple[str, ...]] = ("8", "static:8", "fp32")

    def __init__(self, bits: Bits | str) -> None:
        object.__setattr__(self, "bits", check_bits(bits))

    @property
    def low(self) -> Bits:
        return self.bits

    @property
    def high(self) -> Bits:
        return self.bits

    def bits_at(self, step: int, total_steps: int) -> Bits:
        return self.bits

    def text(self) -> str:
        return bits_text(self.bits)

    def describe(self) -> str:
        return f"{bits_words(self.bits)} throughout"

    @classmethod
    def infos(cls) -> list[ScheduleInfo]:
        return [
            ScheduleInfo("static", None, "8", "The same bits, or a format such as nvfp4"),
            ScheduleInfo("fp32", None, "fp32", "Float32 at every step"),
        ]

    @classmethod
    def read(cls, head: str, reader: Reader) -> Self:
        if head and head.lower() != "static":
            return cls(parse_format(head))
        if head:  # a bare number has no head
            reader.expect(":", "the bits")
        return cls(reader.bits())


@SCHEDULES.register("ramp")
@dataclass(frozen=True, eq=False)
class Ramp(Ranged):
    """Bits that rise by one in equal stages from low to high, then stay high.

    until: the end of the rise, a step count (int) or a fraction of the run (float). CPT calls this
    progressive precision (Fig. 1).

    >>> Ramp(3, 8, until=0.5).values(12)
    [3, 4, 5, 6, 7, 8, 8, 8, 8, 8, 8, 8]
    """

    low: int
    high: int
    until: Time = 0.5

    forms: ClassVar[tuple[str, ...]] = ("ramp:3-8@0.5",)
    is_open: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range(self.low, self.high)
        check_time(self.until, "until")

    def check_span(self, total_steps: int) -> None:
        to_step(self.until, total_steps, "until =")

    def bits_at(self, step: int, total_steps: int) -> int:
        end = to_step(self.until, total_steps, "until =")
        if step >= end:
            return self.high
        return self.low + step * (self.high - self.low + 1) // end

    def notes_over(self, total_steps: int) -> list[str]:
        end, num_stages = to_step(self.until, total_steps, "until ="), self.high - self.low + 1
        if end >= num_stages:
            return []
        skipped = "rungs" if self._rungs else "bit-widths"
        return [
            f"{self} skips {skipped}: its {num_stages} stages have {end} steps in a run of "
            f"{total_steps:,}; ramp for longer or use more steps"
        ]

    def text(self) -> str:
        return f"ramp:{self._range_text}@{self.until!r}"

    def describe(self) -> str:
        if self._rungs:
            return f"rung by rung {self._range_words} until {time_text(self.until)}"
        return f"bit by bit from {self.low} to {self.high} until {time_text(self.until)}"

    @classmethod
    def read(cls, head: str, reader: Reader) -> Self:
        reader.expect(":", "a range of bits or a ladder")
        low, high = reader.bit_range()
        if reader.accept("@"):
            return cls(low, high, until=reader.time("where the ramp ends"))
        return cls(low, high)


@SCHEDULES.register("stages")
@dataclass(frozen=True, eq=False)
class Stages(Schedule):
    """Constant bits, each until an end point.

    Takes pairs (bits, end point). An end point is a step count (int) or a fraction of the run
    (float), counted from the start of the run. The last is 1.0.

    >>> Stages([(16, 0.25), (8, 6), (4, 1.0)]).values(8)
    [16, 16, 8, 8, 8, 8, 4, 4]
    >>> str(Stages([(3, 0.5), (None, 1.0)])), str(Stages([("nvfp4", 0.82), ("bf16", 1.0)]))
    ('stages:3@0.5,fp32', 'stages:nvfp4@0.82,bf16')
    """

    stages: tuple[tuple[Bits, Time], ...]

    forms: ClassVar[tuple[str, ...]] = ("stages:3@0.5,8",)
    is_open: ClassVar[bool] = True

    def __init__(self, stages: Iterable[tuple[Bits | str, Time]]) -> None:
        pairs = check_pairs(stages, "stages", "(bits, end point)")
        checked = (
            (check_bits(bits, f"bits of stage {number}"), end)
            for number, (bits, end) in enumerate(pairs, 1)
        )
        object.__setattr__(self, "stages", tuple(checked))
        check_ends(self._ends, "stages")

    @property
    def _ends(self) -> tuple[Time, ...]:
        return tuple(end for _, end in self.stages)

    @property
    def low(self) -> Bits:
        return lowest(self.named_bits())

    @property
    def high(self) -> Bits:
        return highest(self.named_bits())

    def named_bits(self) -> tuple[Bits, ...]:
        return tuple(bits for bits, _ in self.stages)

    def check_span(self, total_steps: int) -> None:
        to_spans(self._ends, total_steps, "stages")

    def bits_at(self, step: int, total_steps: int) -> Bits:
        spans = to_spans(self._ends, total_steps, "stages")
        number = next(n for n, (_, stop) in enumerate(spans) if step < stop)
        return self.stages[number][0]

    def values_over(self, total_steps: int) -> list[Bits]:
        spans = to_spans(self._ends, total_steps, "stages")
        pieces = zip(self.stages, spans, strict=True)
        return [bits for (bits, _), (start, stop) in pieces for _ in range(start, stop)]

    def notes_over(self, total_steps: int) -> list[str]:
        spans = to_spans(self._ends, total_steps, "stages")
        return [
            f"stage {number} of {self} ({bits_text(bits)}) has no step in a run of {total_steps:,}"
            for number, ((bits, _), (start, stop)) in enumerate(
                zip(self.stages, spans, strict=True), 1
            )
            if start == stop
        ]

    def text(self) -> str:
        *before, (last, _) = self.stages
        pieces = [f"{bits_text(bits)}@{end!r}" for bits, end in before]
        return "stages:" + ",".join([*pieces, bits_text(last)])

    def describe(self) -> str:
        *before, (last, _) = self.stages
        pieces = [f"{bits_text(bits)} until {time_text(end)}" for bits, end in before]
        return ", ".join([*pieces, f"{bits_text(last)} to the end"])

    @classmethod
    def read(cls, head: str, reader: Reader) -> Self:
        reader.expect(":", "stages such as 3@0.5,8")
        stages: list[tuple[Bits, Time]] = []
        while True:
            bits = reader.bits()
            end = reader.time("where the stage ends") if reader.accept("@") else 1.0
            stages.append((bits, end))
            if not reader.accept(","):
                return cls(tuple(stages))


def check_pairs(pairs: object, what: str, form: str) -> tuple[tuple[Any, Any], ...]:
    """Return a list or tuple of pairs as a tuple; otherwise raise."""
    if isinstance(pairs, list | tuple):
        items = [tuple(pair) if isinstance(pair, list | tuple) else () for pair in pairs]
        if all(len(pair) == 2 for pair in items):
            return tuple((first, second) for first, second in items)
    raise ValueError(f"{what} must be a list of pairs {form}, got {pairs!r:.200}")
