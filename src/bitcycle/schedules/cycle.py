"""Cyclic schedules: `Cycle` with its ten published names, CPT's CR among them, and two more shapes.

A profile g(p) grows from 0 to 1 over a cycle. `Cycle` repeats it, or turns it into a triangle; the
ten combinations have names (Better Schedules for Low Precision Training, 2024), and `schedule`
returns them by name. `Anneal` and `Triangle` are the other shapes of CPT's Table 6.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bitcycle.bits import Bits, PlainBits
from bitcycle.registry import Registry, unknown_name
from bitcycle.schedules.base import (
    SCHEDULES,
    Ranged,
    ScheduleInfo,
    check_count,
    levels_words,
    pluralize,
)

DEFAULT_CYCLES = 32  # CPT, ICLR 2021

Tier = Literal["high", "medium", "low"]
Form = Literal["repeated", "triangular"]
Reflection = Literal["horizontal", "vertical"]
FORMS: tuple[Form, ...] = ("repeated", "triangular")
REFLECTIONS: tuple[Reflection, ...] = ("horizontal", "vertical")


@dataclass(frozen=True, eq=False, repr=False)
class Cyclic(Ranged):
    """The base class: N cycles of the shape `unit` over levels."""

    cycles: int = DEFAULT_CYCLES

    grammar: ClassVar[str] = ":levels:cycles"
    # the equal parts of a cycle in which `unit` only rises or only falls; 0: it does neither
    num_legs: ClassVar[int] = 0

    @abstractmethod
    def unit(self, k: int, p: float) -> float:
        """Return the height in [0, 1] at phase p in [0, 1) of cycle k."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.cycles, "cycles")

    def check_span(self, total_steps: int) -> None:
        if self.cycles > total_steps:
            raise ValueError(
                f"cycles ({self.cycles}) must be <= total_steps ({total_steps}) in {self}"
            )

    def bits_at(self, step: int, total_steps: int) -> PlainBits:
        k, rest = divmod(step * self.cycles, total_steps)
        return self.at_height(self.unit(k, rest / total_steps))

    def turns(self, total_steps: int) -> Iterable[int]:
        number = self.cycles * self.num_legs or total_steps
        return [-(-leg * total_steps // number) for leg in range(number)]

    def count_cycles(self, total_steps: int) -> int:
        return self.cycles

    def notes_over(self, total_steps: int) -> list[str]:
        reached = self.bit_widths(total_steps)
        missed = [str(Bits.of(bits)) for bits in (self.high, self.low) if bits not in reached]
        if not missed:
            return []
        return [
            f"{self} never reaches {' or '.join(missed)} in {total_steps:,} steps: "
            f"{self.why_too_short(total_steps)}"
        ]

    def why_too_short(self, total_steps: int) -> str:
        """Why a run of this length misses an end, and the way out."""
        length = total_steps // self.cycles
        return f"a cycle of about {length:,} steps is too short; use fewer cycles or more steps"


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
@dataclass(frozen=True, eq=False, repr=False)
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

    profile: str = "cosine"
    form: Form = "repeated"
    reflect: Reflection = "horizontal"

    forms: ClassVar[tuple[str, ...]] = ("CR:3-8:32", "CR:4,8,fp32:8")
    num_legs: ClassVar[int] = 1

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
        last = self.bits_at(total_steps - 1, total_steps)
        ending = f"{self} ends at {Bits.of(last)}"
        if self.form == "triangular" and self.cycles % 2 == 1 and self.low != self.high:
            notes.append(
                f"{ending}: an odd number of triangular cycles ({self.cycles}) ends on the way "
                "down; use an even number"
            )
        elif last != self.high and not notes:
            notes.append(
                f"{ending}, not at its top of {Bits.of(self.high)}: "
                f"{self.why_too_short(total_steps)}"
            )
        return notes

    def why_too_short(self, total_steps: int) -> str:
        shape = f"the {self.profile} profile {levels_words(self.levels)}"
        if (needed := self.shortest_cycle()) is None:
            return f"{shape} does not reach both ends at any length; use fewer levels"
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
            phases = (0.0, (steps - 1) / steps)
            heights = [[self.unit(k, p) for p in phases] for k in directions]
            return all(set(map(self.at_height, both)) == ends for both in heights)

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

    def describe(self) -> str:
        cycles = pluralize(self.cycles, f"{self.form} {self.profile} cycle")
        is_mirrored = self.form == "triangular" and not PROFILES[self.profile].is_symmetric
        mirror = f", decay mirrored {self.reflect}ly" if is_mirrored else ""
        return f"{cycles} {levels_words(self.levels)}{mirror}"

    @classmethod
    def names(cls) -> dict[str, dict[str, Any]]:
        found = {}
        for key, profile in PROFILES.items():
            found[f"{profile.letter}R"] = {"profile": key, "form": "repeated"}
            for reflect in REFLECTIONS[:1] if profile.is_symmetric else REFLECTIONS:
                mirror = "" if profile.is_symmetric else f"-{reflect[0].upper()}"
                fields = {"profile": key, "form": "triangular", "reflect": reflect}
                found[f"{profile.letter}T{mirror}"] = fields
        return found

    @classmethod
    def infos(cls) -> list[ScheduleInfo]:
        named = {name: cls(3, 8, **fields) for name, fields in cls.names().items()}
        return [ScheduleInfo(name, one.tier, str(one), one._summary) for name, one in named.items()]

    @property
    def _summary(self) -> str:
        profile = PROFILES[self.profile]
        if self.form == "repeated":
            paper = " (the CPT paper's schedule)" if self.profile == "cosine" else ""
            return f"Grows in every cycle, {self.profile}: {profile.summary}{paper}"
        mirror = {"horizontal": "in time", "vertical": "in value"}[self.reflect]
        decay = "" if profile.is_symmetric else f"; decays as that mirrored {mirror}"
        return f"Down and up in turn, {self.profile}: {profile.summary}{decay}"


def schedule(
    name: str,
    *,
    low: int | None = None,
    high: int | None = None,
    ladder: Iterable[PlainBits | str] | None = None,
    cycles: int = DEFAULT_CYCLES,
) -> Cycle:
    """Return one of LR, CR, ER, RR (repeated), LT, CT, ET-H, ET-V, RT-H, RT-V (triangular).

    CR is the CPT paper's schedule. Case does not matter. Give `low` and `high`, or a `ladder` of
    formats and numbers of bits.

    >>> schedule("CR", low=3, high=8, cycles=8) == Cycle(3, 8, cycles=8)
    True
    >>> str(schedule("CR", ladder=["mxfp4", "mxfp8", "bf16"], cycles=8))
    'CR:mxfp4,mxfp8,bf16:8'
    """
    named = {key.lower(): fields for key, fields in Cycle.names().items()}
    if not isinstance(name, str) or name.lower() not in named:
        raise unknown_name("named schedule", name, Cycle.names())
    levels: Any = tuple(ladder or ())
    return Cycle(low, high, cycles, levels=levels, **named[name.lower()])


# -- other shapes ---------------------------------------------------------------------------------


@SCHEDULES.register("anneal")
@dataclass(frozen=True, eq=False, repr=False)
class Anneal(Cyclic):
    """Cosine decay from high to low in every cycle (CPT, Table 6); ends at low.

    bits = rint(low + (high - low) (1 + cos(pi phase)) / 2)

    >>> Anneal(3, 8, cycles=2).values(12)
    [8, 8, 7, 6, 4, 3, 8, 8, 7, 6, 4, 3]
    """

    forms: ClassVar[tuple[str, ...]] = ("anneal:3-8:32",)
    num_legs: ClassVar[int] = 1

    def unit(self, k: int, p: float) -> float:
        return (1 + math.cos(math.pi * p)) / 2

    def describe(self) -> str:
        return f"{pluralize(self.cycles, 'cosine decay')} {levels_words(self.levels)}"


@SCHEDULES.register("triangle")
@dataclass(frozen=True, eq=False, repr=False)
class Triangle(Cyclic):
    """Linear up and down inside every cycle (CPT, Table 6); starts and ends at low.

    bits = rint(low + (high - low) (1 - |2 phase - 1|))

    >>> Triangle(3, 8, cycles=1).values(10)
    [3, 4, 5, 6, 7, 8, 7, 6, 5, 4]
    """

    forms: ClassVar[tuple[str, ...]] = ("triangle:3-8:32",)
    num_legs: ClassVar[int] = 2

    def unit(self, k: int, p: float) -> float:
        return 1 - abs(2 * p - 1)

    def describe(self) -> str:
        return f"{pluralize(self.cycles, 'linear triangle')} {levels_words(self.levels)}"
