"""What all cycling schedules share, and two simple ones: cosine annealing and the triangle.

With N cycles and integers only, step t of T lies in cycle k = (t N) // T at phase
((t N) mod T) / T: always exactly N cycles, and the run ends where a cycle ends, whether or not
N divides T.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from bitcycle.schedules.base import SCHEDULES, Schedule
from bitcycle.schedules.checks import Bits, check_range, count, rint

if TYPE_CHECKING:
    from bitcycle.schedules.text import Reader

DEFAULT_CYCLES = 32  # CPT, ICLR 2021


class Cyclic(Schedule):
    """N cycles between two bit-widths; `unit` is the shape of cycle k on a scale from 0 to 1."""

    if TYPE_CHECKING:  # fields of every subclass

        @property
        def low(self) -> int: ...

        @property
        def high(self) -> int: ...

        @property
        def cycles(self) -> int: ...

    @abstractmethod
    def unit(self, k: int, p: float) -> float:
        """Height in [0, 1] at phase p of cycle k, of which only even or odd may matter."""

    def __post_init__(self) -> None:
        check_range(self.low, self.high)
        if isinstance(self.cycles, bool) or not isinstance(self.cycles, int) or self.cycles < 1:
            raise ValueError(f"cycles must be a whole number of at least 1, got {self.cycles!r}")

    def check_span(self, total_steps: int) -> None:
        if self.cycles > total_steps:
            raise ValueError(
                f"cycles ({self.cycles}) must be <= total_steps ({total_steps}) in {self}; "
                "use fewer cycles or more steps"
            )

    def bits_at(self, step: int, total_steps: int) -> int:
        k, rest = divmod(step * self.cycles, total_steps)
        return self.bits_in(k, rest / total_steps)

    def bits_in(self, k: int, p: float) -> int:
        """The bits at phase p of cycle k."""
        return rint(self.low + (self.high - self.low) * self.unit(k, p))

    def values_over(self, total_steps: int) -> list[Bits]:
        # k grows by an even number, and the phase is the same again, after this many steps
        period = min(total_steps, 2 * (total_steps // math.gcd(total_steps, self.cycles)))
        values: list[Bits] = [self.bits_at(step, total_steps) for step in range(period)]
        return (values * (total_steps // period + 1))[:total_steps]

    def count_cycles(self, total_steps: int) -> int:
        return self.cycles

    def notes_over(self, total_steps: int) -> list[str]:
        seen = set(self.values_over(total_steps))
        missed = [bits for bits in (self.high, self.low) if bits not in seen]
        if not missed:
            return []
        return [
            f"{self} never gets to {' or '.join(map(str, missed))} bits in {total_steps:,} steps: "
            f"{self.why_too_short(total_steps)}"
        ]

    def why_too_short(self, total_steps: int) -> str:
        """The reason that a run of this length misses an end, and the way out."""
        length = total_steps // self.cycles
        return f"a cycle of about {length:,} steps is too short; use fewer cycles or more steps"

    @property
    def head(self) -> str:
        """The name its text begins with."""
        return type(self).kind()

    def text(self) -> str:
        return f"{self.head}:{self.low}-{self.high}:{self.cycles}"

    @classmethod
    def named(cls) -> dict[str, Self]:
        """An example, from 3 to 8 bits, under every name that the class goes by."""
        example = cls(low=3, high=8)  # type: ignore[call-arg]
        return {example.head: example}

    @classmethod
    def read(cls, head: str, reader: Reader) -> Self:
        reader.expect(":", "a range of bits")
        low, high = reader.bit_range()
        cycles = reader.whole("the number of cycles") if reader.accept(":") else DEFAULT_CYCLES
        example = next(one for name, one in cls.named().items() if name.lower() == head.lower())
        return replace(example, low=low, high=high, cycles=cycles)  # type: ignore[type-var]


@SCHEDULES.register("anneal")
@dataclass(frozen=True, eq=False)
class Anneal(Cyclic):
    """Cosine decay from high to low in every cycle (CPT, Table 6); ends at low.

    bits = rint(low + (high - low) (1 + cos(pi phase)) / 2)

    >>> Anneal(3, 8, cycles=2).values(12)
    [8, 8, 7, 6, 4, 3, 8, 8, 7, 6, 4, 3]
    """

    low: int
    high: int
    cycles: int = DEFAULT_CYCLES

    forms: ClassVar[tuple[str, ...]] = ("anneal:3-8:32",)

    def unit(self, k: int, p: float) -> float:
        return (1 + math.cos(math.pi * p)) / 2

    def describe(self) -> str:
        return f"{count(self.cycles, 'cosine decay')} from {self.high} to {self.low} bits"


@SCHEDULES.register("triangle")
@dataclass(frozen=True, eq=False)
class Triangle(Cyclic):
    """Linear up and down inside every cycle (CPT, Table 6); starts and ends at low.

    bits = rint(low + (high - low) (1 - |2 phase - 1|))

    >>> Triangle(3, 8, cycles=1).values(10)
    [3, 4, 5, 6, 7, 8, 7, 6, 5, 4]
    """

    low: int
    high: int
    cycles: int = DEFAULT_CYCLES

    forms: ClassVar[tuple[str, ...]] = ("triangle:3-8:32",)

    def unit(self, k: int, p: float) -> float:
        return 1 - abs(2 * p - 1)

    def describe(self) -> str:
        return f"{count(self.cycles, 'linear triangle')} between {self.low} and {self.high} bits"
