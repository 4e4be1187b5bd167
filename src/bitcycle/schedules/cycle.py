"""Cycles of a profile: the ten published schedules (Better Schedules, 2024), CPT's among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from bitcycle.registry import unknown_name
from bitcycle.schedules.base import SCHEDULES, ScheduleInfo
from bitcycle.schedules.checks import count
from bitcycle.schedules.cyclic import DEFAULT_CYCLES, Cyclic
from bitcycle.schedules.profiles import PROFILES, Tier

Form = Literal["repeated", "triangular"]
Reflection = Literal["horizontal", "vertical"]
FORMS: tuple[Form, ...] = ("repeated", "triangular")
REFLECTIONS: tuple[Reflection, ...] = ("horizontal", "vertical")
_WAYS: list[tuple[Form, Reflection]] = [(form, way) for form in FORMS for way in REFLECTIONS]


@SCHEDULES.register("cycle")
@dataclass(frozen=True, eq=False)
class Cycle(Cyclic):
    """Cycles of one profile: repeated growth, or triangular (down, up, down, up, ...).

    bits = rint(low + (high - low) g(phase)); the decay of a triangular cycle is g mirrored in time
    (horizontal: g(1 - p)) or in value (vertical: 1 - g(p)). Where the reflection changes nothing
    (repeated cycles; the symmetric profiles linear and cosine) it is stored as "horizontal".

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
        last = self.bits_at(total_steps - 1, total_steps)
        if self.form == "triangular" and self.cycles % 2 == 1 and self.low < self.high:
            notes.append(
                f"{self} ends at {last} bits: an odd number of triangular cycles ({self.cycles}) "
                "ends on the way down; use an even number"
            )
        elif last != self.high and not notes:
            notes.append(
                f"{self} ends at {last} bits, not at its top of {self.high}: "
                f"{self.why_too_short(total_steps)}"
            )
        return notes

    def why_too_short(self, total_steps: int) -> str:
        shape = f"the {self.profile} profile from {self.low} to {self.high}"
        if (needed := self.shortest_cycle()) is None:
            return f"{shape} does not reach both ends at any length; choose bits closer together"
        return (
            f"{shape} needs {needed} steps in a cycle, here {total_steps // self.cycles}; "
            "use fewer cycles or more steps"
        )

    def shortest_cycle(self) -> int | None:
        """Steps a cycle needs to start at one end and finish at the other; None if none is enough.

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
        """Cost against static `high`: high, medium or low."""
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
        cycles = count(self.cycles, f"{self.form} {self.profile} cycle")
        mirror = f", decay mirrored {self.reflect}ly" if "-" in self.head else ""
        return f"{cycles} between {self.low} and {self.high} bits{mirror}"

    @classmethod
    def named(cls) -> dict[str, Self]:
        every = (cls(3, 8, profile=p, form=f, reflect=r) for p in PROFILES for f, r in _WAYS)
        return {example.head: example for example in every}

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
