"""Cyclic schedules: `Cycle` with its ten published names, CPT's CR among them, and two more shapes.

A profile g(p) grows from 0 to 1 over a cycle. `Cycle` repeats it, or turns it into a triangle; the
ten combinations have names (Better Schedules for Low Precision Training, 2024), and `schedule`
returns them by name. `Anneal` and `Triangle` are the other shapes of CPT's Table 6. All of them run
over a ladder of formats too; see `ladder`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self, overload

from bitcycle.registry import Registry, unknown_name
from bitcycle.schedules.base import (
    SCHEDULES,
    Bits,
    Ranged,
    ScheduleInfo,
    check_count,
    check_range,
    check_rungs,
    pluralize,
    rint,
)
from bitcycle.schedules.ladder import FIRST, Ladder

if TYPE_CHECKING:
    from bitcycle.schedules.text import Reader

DEFAULT_CYCLES = 32  # CPT, ICLR 2021

Tier = Literal["high", "medium", "low"]
Form = Literal["repeated", "triangular"]
Reflection = Literal["horizontal", "vertical"]
FORMS: tuple[Form, ...] = ("repeated", "triangular")
REFLECTIONS: tuple[Reflection, ...] = ("horizontal", "vertical")


class Cyclic(Ranged):
    """The base class: N cycles between two bit-widths, of the shape `unit`."""

    if TYPE_CHECKING:  # a field of every subclass

        @property
        def cycles(self) -> int: ...

    @abstractmethod
    def unit(self, k: int, p: float) -> float:
        """Return the height in [0, 1] at phase p in [0, 1) of cycle k.

        All even cycles have the same shape, and so have all odd cycles.
        """

    def __post_init__(self) -> None:
        check_range(self.low, self.high)
        check_count(self.cycles, "cycles")

    def check_span(self, total_steps: int) -> None:
        if self.cycles > total_steps:
            raise ValueError(
                f"cycles ({self.cycles}) must be <= total_steps ({total_steps}) in {self}"
            )

    def bits_at(self, step: int, total_steps: int) -> int:
        k, rest = divmod(step * self.cycles, total_steps)
        return self.bits_in(k, rest / total_steps)

    def bits_in(self, k: int, p: float) -> int:
        """Return the bits at phase p of cycle k."""
        return rint(self.low + (self.high - self.low) * self.unit(k, p))

    def values_over(self, total_steps: int) -> list[Bits]:
        # after this many steps the phase repeats and k has grown by an even number
        period = min(total_steps, 2 * (total_steps // math.gcd(total_steps, self.cycles)))
        values: list[Bits] = [self.bits_at(step, total_steps) for step in range(period)]
        return (values * (total_steps // period + 1))[:total_steps]

    def count_cycles(self, total_steps: int) -> int:
        return self.cycles

    def notes_over(self, total_steps: int) -> list[str]:
        numbers = set(self.values_over(total_steps))
        reached = {self._name_of(number) for number in numbers if isinstance(number, int)}
        missed = [name for name in self._ends if name not in reached]
        if not missed:
            return []
        return [
            f"{self} never reaches {' or '.join(missed)}{self._suffix} in {total_steps:,} steps: "
            f"{self.why_too_short(total_steps)}"
        ]

    @property
    def _ends(self) -> tuple[str, str]:
        return self._name_of(self.high), self._name_of(self.low)

    def why_too_short(self, total_steps: int) -> str:
        """Why a run of this length misses an end, and the way out."""
        length = total_steps // self.cycles
        return f"a cycle of about {length:,} steps is too short; use fewer cycles or more steps"

    @property
    def head(self) -> str:
        """The name that its text begins with."""
        return type(self).kind()

    def text(self) -> str:
        return f"{self.head}:{self._range_text}:{self.cycles}"

    @classmethod
    def named(cls) -> dict[str, Self]:
        """An example from 3 to 8 bits for every name of the class."""
        example = cls(low=3, high=8)  # type: ignore[call-arg]
        return {example.head: example}

    @classmethod
    def read(cls, head: str, reader: Reader) -> Self:
        reader.expect(":", "a range of bits or a ladder")
        low, high = reader.bit_range()
        cycles = reader.whole("the number of cycles") if reader.accept(":") else DEFAULT_CYCLES
        example = next(one for name, one in cls.named().items() if name.lower() == head.lower())
        return replace(example, low=low, high=high, cycles=cycles)  # type: ignore[type-var]


# -- profiles -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """A non-decreasing function g(p) of the phase p in [0, 1] with g(0) = 0."""

    name: str
    letter: str
    growth: Callable[[float], float]
    is_symmetric: bool  # g(1 - p) = 1 - g(p): reflections in time and in value are the same
    tier: Tier  # cost of repeated cycles
    summary: str


PROFILES: Registry[Profile] = Registry("profile", "bitcycle.schedules")


def profile(
    name: str, *, letter: str, tier: Tier, is_symmetric: bool = False
) -> Callable[[Callable[[float], float]], Callable[[float], float]]:
    """Register a growth function under a name and a letter."""

    def add(growth: Callable[[float], float]) -> Callable[[float], float]:
        summary = (growth.__doc__ or "").strip().splitlines()[0].rstrip(".")
        entry = Profile(name, letter, growth, is_symmetric, tier, summary)
        PROFILES.register(name)(entry)
        return growth

    return add


@profile("linear", letter="L", tier="medium", is_symmetric=True)
def linear(p: float) -> float:
    """an even pace.

    g(p) = p
    """
    return p


@profile("cosine", letter="C", tier="medium", is_symmetric=True)
def cosine(p: float) -> float:
    """slow at both ends.

    g(p) = (1 - cos(pi p)) / 2
    """
    return (1 - math.cos(math.pi * p)) / 2


@profile("exponential", letter="E", tier="high")
def exponential(p: float) -> float:
    """fast, then long near the top.

    g(p) = 1 - exp(-4 p), at most 0.98168: rounds to `high` for ranges of up to 27 bits.
    """
    return 1 - math.exp(-4 * p)


@profile("rex", letter="R", tier="low")
def rex(p: float) -> float:
    """long near the bottom, then fast (reflected exponential).

    g(p) = 1 - u / (0.1 + 0.9 u), u = 1 - p
    """
    u = 1 - p
    return 1 - u / (0.1 + 0.9 * u)


# -- cycles of a profile --------------------------------------------------------------------------


@SCHEDULES.register("cycle")
@dataclass(frozen=True, eq=False)
class Cycle(Cyclic):
    """Cycles of one profile: repeated growth, or triangular (down, up, down, up, ...).

    bits = rint(low + (high - low) g(p)) at phase p of a cycle. The decay of a triangular cycle is g
    reflected in time (horizontal: g(1 - p)) or in value (vertical: 1 - g(p)). Where the reflection
    makes no difference (repeated cycles, symmetric profiles) it is stored as "horizontal".

    >>> Cycle(3, 8, cycles=1).values(10)  # CR, eq. 1 of CPT
    [3, 3, 3, 4, 5, 6, 6, 7, 8, 8]
    >>> str(Cycle(3, 8, cycles=2, profile="rex", form="triangular", reflect="vertical"))
    'RT-V:3-8:2'
    """

    low: int
    high: int
    cycles: int = DEFAULT_CYCLES
    profile: str = "cosine"
    form: Form = "repeated"
    reflect: Reflection = "horizontal"

    forms: ClassVar[tuple[str, ...]] = ("CR:3-8:32",)

    def __post_init__(self) -> None:
        super().__post_init__()
        profile = PROFILES[self.profile]
        if self.form not in FORMS:
            raise unknown_name("form", self.form, FORMS)
        if self.reflect not in REFLECTIONS:
            raise unknown_name("reflection", self.reflect, REFLECTIONS)
        if self.form == "repeated" or profile.is_symmetric:
            object.__setattr__(self, "reflect", "horizontal")

    def unit(self, k: int, p: float) -> float:
        g = PROFILES[self.profile].growth
        if self.form == "repeated" or k % 2 == 1:
            return g(p)
        return g(1 - p) if self.reflect == "horizontal" else 1 - g(p)

    def notes_over(self, total_steps: int) -> list[str]:
        notes = super().notes_over(total_steps)
        last = self._name_of(self.bits_at(total_steps - 1, total_steps))
        top, _ = self._ends
        if self.form == "triangular" and self.cycles % 2 == 1 and self.low < self.high:
            notes.append(
                f"{self} ends at {last}{self._suffix}: an odd number of triangular cycles "
                f"({self.cycles}) ends on the way down; use an even number"
            )
        elif last != top and not notes:
            notes.append(
                f"{self} ends at {last}{self._suffix}, not at its top of {top}: "
                f"{self.why_too_short(total_steps)}"
            )
        return notes

    def why_too_short(self, total_steps: int) -> str:
        top, bottom = self._ends
        shape = f"the {self.profile} profile from {bottom} to {top}"
        if (needed := self.shortest_cycle()) is None:
            way_out = "use fewer rungs" if self._rungs else "choose bits closer together"
            return f"{shape} does not reach both ends at any length; {way_out}"
        return (
            f"{shape} needs {needed} steps in a cycle, here {total_steps // self.cycles}; "
            "use fewer cycles or more steps"
        )

    def shortest_cycle(self) -> int | None:
        """Return the steps that a cycle needs from one end to the other; None if it never does.

        >>> Cycle(3, 8, profile="rex").shortest_cycle()
        91
        """
        ends = {self.low, self.high}
        directions = (1,) if self.form == "repeated" else (0, 1)

        def is_enough(steps: int) -> bool:
            last = (steps - 1) / steps
            return all({self.bits_in(k, 0.0), self.bits_in(k, last)} == ends for k in directions)

        short, enough = 0, 2**20
        if not is_enough(enough):
            return None
        while enough - short > 1:
            middle = (short + enough) // 2
            short, enough = (short, middle) if is_enough(middle) else (middle, enough)
        return enough

    @property
    def tier(self) -> Tier:
        """The cost relative to static `high`: high, medium or low."""
        is_balanced = self.form == "triangular" and self.reflect == "vertical"
        return "medium" if is_balanced else PROFILES[self.profile].tier

    @property
    def head(self) -> str:
        profile = PROFILES[self.profile]
        if self.form == "repeated":
            return f"{profile.letter}R"
        mirror = "" if profile.is_symmetric else f"-{self.reflect[0].upper()}"
        return f"{profile.letter}T{mirror}"

    def describe(self) -> str:
        cycles = pluralize(self.cycles, f"{self.form} {self.profile} cycle")
        mirror = f", decay mirrored {self.reflect}ly" if "-" in self.head else ""
        return f"{cycles} {self._range_words}{mirror}"

    @classmethod
    def named(cls) -> dict[str, Self]:
        examples = (
            cls(3, 8, profile=profile, form=form, reflect=reflect)
            for profile in PROFILES
            for form in FORMS
            for reflect in REFLECTIONS
        )
        return {example.head: example for example in examples}

    @classmethod
    def infos(cls) -> list[ScheduleInfo]:
        return [
            ScheduleInfo(name, one.tier, str(one), one._summary)
            for name, one in cls.named().items()
        ]

    @property
    def _summary(self) -> str:
        profile = PROFILES[self.profile]
        if self.form == "repeated":
            paper = " (the CPT paper's schedule)" if self.profile == "cosine" else ""
            return f"Grows in every cycle, {self.profile}: {profile.summary}{paper}"
        mirror = {"horizontal": "in time", "vertical": "in value"}[self.reflect]
        decay = "" if profile.is_symmetric else f"; decays as that mirrored {mirror}"
        return f"Down and up in turn, {self.profile}: {profile.summary}{decay}"


@overload
def schedule(name: str, *, low: int, high: int, cycles: int = ...) -> Cycle: ...


@overload
def schedule(name: str, *, ladder: Iterable[Bits | str], cycles: int = ...) -> Ladder: ...


def schedule(
    name: str,
    *,
    low: int | None = None,
    high: int | None = None,
    ladder: Iterable[Bits | str] | None = None,
    cycles: int = DEFAULT_CYCLES,
) -> Cycle | Ladder:
    """Return one of LR, CR, ER, RR (repeated), LT, CT, ET-H, ET-V, RT-H, RT-V (triangular).

    CR is the CPT paper's schedule. Case does not matter. Give `low` and `high`, or a `ladder` of
    formats and numbers of bits.

    >>> schedule("CR", low=3, high=8, cycles=8) == Cycle(3, 8, cycles=8)
    True
    >>> str(schedule("CR", ladder=["mxfp4", "mxfp8", "bf16"], cycles=8))
    'CR:mxfp4,mxfp8,bf16:8'
    """
    named = {key.lower(): example for key, example in Cycle.named().items()}
    if not isinstance(name, str) or name.lower() not in named:
        raise unknown_name("named schedule", name, Cycle.named())
    example = named[name.lower()]
    if ladder is not None and low is None and high is None:
        rungs = check_rungs(ladder if isinstance(ladder, str) else list(ladder))
        numbers = {"low": FIRST, "high": FIRST + len(rungs) - 1}
        return Ladder(rungs, replace(example, cycles=cycles, **numbers))  # type: ignore[arg-type]
    if ladder is not None or low is None or high is None:
        raise ValueError(
            f"give low and high, or a ladder; got low={low!r}, high={high!r}, "
            f"ladder={ladder!r:.200}"
        )
    return replace(example, low=low, high=high, cycles=cycles)


# -- other shapes ---------------------------------------------------------------------------------


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
        top, bottom = self._ends
        return f"{pluralize(self.cycles, 'cosine decay')} from {top} to {bottom}{self._suffix}"


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
        return f"{pluralize(self.cycles, 'linear triangle')} {self._range_words}"
