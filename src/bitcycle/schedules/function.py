"""Schedules whose bits are known by evaluating them: `Function`, and `Tabulated`, one over a run.

A function or a class with `bits_at` alone does not say which bits it can have. A run evaluates it
once at every step; the table has the least and the most bits, and its digest identifies the bits.
"""

from __future__ import annotations

import inspect
from bisect import bisect_right
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

from bitcycle.bits import PlainBits
from bitcycle.schedules.base import Levels, Schedule, checked_bits
from bitcycle.schedules.segments import Segment

StepFunction = Callable[[int, int], PlainBits | str]


class Function(Schedule):
    """The bits that a Python function returns.

    function: of the step and the number of steps of the run. It returns a number of bits, a format
    or its name, or None for float32, and depends on nothing but its arguments.

    >>> Function(lambda step, total: 4 if step < total / 2 else 8).values(6)
    [4, 4, 4, 8, 8, 8]
    """

    def __init__(self, function: StepFunction) -> None:
        if isinstance(function, type):
            raise ValueError(f"{function.__name__} is a class: pass an instance of it as schedule")
        try:
            inspect.signature(function).bind(0, 1)
        except TypeError as error:
            raise ValueError(
                f"a schedule is a function of two numbers, lambda step, total: ...; {function!r} "
                f"does not take them ({error})"
            ) from None
        except ValueError:  # written in C: no signature to look at
            pass
        self.function = function

    def bits_at(self, step: int, total_steps: int) -> PlainBits:
        return self.function(step, total_steps)  # type: ignore[return-value]  # checked_bits

    def describe(self) -> str:
        return "the bits that a Python function returns"

    def __str__(self) -> str:
        code = getattr(self.function, "__code__", None)
        if code is None:
            return f"<{self.function!r}>"
        name = self.function.__name__.strip("<>")
        return f"<{name} at {Path(code.co_filename).name}:{code.co_firstlineno}>"


class Tabulated(Schedule):
    """A schedule evaluated at every step of a run of `total_steps` steps."""

    def __init__(self, schedule: Schedule, total_steps: int) -> None:
        schedule.check_span(total_steps)
        self.schedule, self.total_steps = schedule, total_steps
        bits = (checked_bits(schedule, step, total_steps) for step in range(total_steps))
        self._segments: list[Segment] = []
        start = 0
        for value, steps in groupby(bits):
            stop = start + sum(1 for _ in steps)
            self._segments.append(Segment(start, stop, value))
            start = stop
        self._starts = [segment.start for segment in self._segments]
        self._levels = tuple(dict.fromkeys(segment.bits for segment in self._segments))
        self._digest = super().digest(total_steps)

    @property
    def levels(self) -> Levels:
        return self._levels

    def bits_at(self, step: int, total_steps: int) -> PlainBits:
        self._check_length(total_steps)
        return self._segments[bisect_right(self._starts, step) - 1].bits

    def segments(self, total_steps: int) -> list[Segment]:
        self._check_length(total_steps)
        return self._segments

    def digest(self, total_steps: int) -> str:
        self._check_length(total_steps)
        return self._digest

    def _check_length(self, total_steps: int) -> None:
        if total_steps != self.total_steps:
            raise ValueError(
                f"{self} was evaluated over {self.total_steps} steps, not {total_steps}"
            )

    def describe(self) -> str:
        return self.schedule.describe()

    def notes_over(self, total_steps: int) -> list[str]:
        return self.schedule.notes_over(total_steps)

    def count_cycles(self, total_steps: int) -> int:
        return self.schedule.count_cycles(total_steps)

    def definition(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule, "total_steps": self.total_steps, "digest": self._digest
        }  # fmt: skip

    def __str__(self) -> str:
        return str(self.schedule)
