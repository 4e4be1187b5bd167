"""Ladders: schedules over a list of formats, such as CR:mxfp4,mxfp8,bf16:8.

A ladder has an ordinary integer schedule as its path, whose numbers are those of the rungs: every
schedule between two numbers of bits runs over a ladder too. `parse_schedule` makes ladders from
lists with commas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NoReturn

from bitcycle.schedules.adaptive import Adaptive, State
from bitcycle.schedules.base import (
    SCHEDULES,
    Bits,
    Ranged,
    Schedule,
    ScheduleInfo,
    check_rungs,
    levels_text,
    pluralize,
)

if TYPE_CHECKING:
    from bitcycle.schedules.text import Reader

# The number of the first rung. It is even, so that ties, which go to the even number, go to the
# rung with the even index: rint(2 + (n - 1) g) = 2 + rint((n - 1) g).
FIRST = 2


class _Rungs(Schedule):
    """What the two kinds of ladder share: bits are rungs, and the path writes the texts."""

    rungs: tuple[Bits, ...]
    path: Ranged

    def __init__(self, rungs: Iterable[Bits | str], path: Schedule) -> None:
        is_list = isinstance(rungs, Iterable) and not isinstance(rungs, str)
        checked = check_rungs(list(rungs) if is_list else rungs)
        object.__setattr__(self, "rungs", checked)
        numbered = replace(
            self._check_path(path, checked),  # type: ignore[type-var]
            low=FIRST,
            high=FIRST + len(checked) - 1,
        )
        object.__setattr__(numbered, "_rungs", checked)  # its texts name them
        object.__setattr__(self, "path", numbered)

    def _check_path(self, path: Schedule, rungs: tuple[Bits, ...]) -> Ranged:
        if not isinstance(path, Ranged):
            raise ValueError(
                f"the path over a ladder is a schedule between two numbers of bits, not {path}"
            )
        if path.is_adaptive != self.is_adaptive:
            right = AdaptiveLadder if path.is_adaptive else Ladder
            raise ValueError(f"the path {path} needs {right.__name__}, not {type(self).__name__}")
        if path.high - path.low != len(rungs) - 1:
            raise ValueError(
                f"the path {path} has {pluralize(path.high - path.low + 1, 'number')} for the "
                f"{len(rungs)} rungs {levels_text(rungs)}; use {FIRST} to {FIRST + len(rungs) - 1}"
            )
        return path

    @property
    def low(self) -> Bits:
        return self.rungs[0]

    @property
    def high(self) -> Bits:
        return self.rungs[-1]

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        return self.path.is_open

    def named_bits(self) -> tuple[Bits, ...]:
        return self.rungs

    def check_span(self, total_steps: int) -> None:
        self.path.check_span(total_steps)

    def notes_over(self, total_steps: int) -> list[str]:
        return self.path.notes_over(total_steps)

    def text(self) -> str:
        return self.path.text()

    def describe(self) -> str:
        return self.path.describe()

    @classmethod
    def infos(cls) -> list[ScheduleInfo]:
        return []  # its text begins with the name of the path

    @classmethod
    def read(cls, head: str, reader: Reader) -> NoReturn:
        raise NotImplementedError("the path reads the text; Reader.schedule makes the ladder")


@SCHEDULES.register("ladder")
@dataclass(frozen=True, eq=False, init=False)
class Ladder(_Rungs):
    """A schedule over a list of formats and numbers of bits, which must not fall.

    path: a schedule between two numbers of bits, as many as there are rungs: `Cycle`, `Anneal`,
    `Triangle` or `Ramp`. It is stored between 2 and n + 1. A cycle picks the rung with the index
    rint((n - 1) g), g from 0 to 1; a ramp gives every rung an equal stage.

    >>> from bitcycle.schedules import Ramp
    >>> ladder = Ladder(["mxfp4", "mxfp8", "bf16"], Ramp(2, 4, until=1.0))
    >>> str(ladder), ladder.values(6)
    ('ramp:mxfp4,mxfp8,bf16@1.0', [mxfp4, mxfp4, mxfp8, mxfp8, bf16, bf16])
    """

    rungs: tuple[Bits, ...]
    path: Ranged

    forms: ClassVar[tuple[str, ...]] = ("CR:4,8,fp32:8", "ramp:4,8,fp32@0.5")

    def rung_of(self, number: Bits) -> Bits:
        """Return the rung of a number of the path."""
        assert isinstance(number, int)
        return self.rungs[number - FIRST]

    def bits_at(self, step: int, total_steps: int) -> Bits:
        return self.rung_of(self.path.bits_at(step, total_steps))

    def values_over(self, total_steps: int) -> list[Bits]:
        return [self.rung_of(number) for number in self.path.values_over(total_steps)]

    def count_cycles(self, total_steps: int) -> int:
        return self.path.count_cycles(total_steps)

    def notes_over(self, total_steps: int) -> list[str]:
        if notes := super().notes_over(total_steps):
            return notes
        reached = set(self.values_over(total_steps))
        if skipped := [rung for rung in dict.fromkeys(self.rungs) if rung not in reached]:
            return [
                f"{self} skips {levels_text(skipped)} in {total_steps:,} steps: use fewer cycles "
                "or more steps"
            ]
        return []


@SCHEDULES.register("adaptive_ladder")
@dataclass(frozen=True, eq=False, init=False)
class AdaptiveLadder(_Rungs, Adaptive):
    """An adaptive schedule that rises from rung to rung of a ladder.

    path: an adaptive schedule between two numbers of bits, as many as there are rungs: `Plateau`.
    `PFQ` and `NoiseSwitch` take lists of formats themselves.

    >>> from bitcycle.schedules import Plateau
    >>> str(AdaptiveLadder(["mxfp4", "mxfp8", "bf16"], Plateau(2, 4, window=40)))
    'plateau:mxfp4,mxfp8,bf16:window=40:patience=4:threshold=0.01'
    """

    rungs: tuple[Bits, ...]
    path: Ranged

    forms: ClassVar[tuple[str, ...]] = ("plateau:4,8,fp32:window=40",)

    @property
    def _rule(self) -> Adaptive:
        assert isinstance(self.path, Adaptive)
        return self.path

    @property
    def levels(self) -> tuple[Bits, ...]:
        return self.rungs

    @property
    def reads(self) -> tuple[str, ...]:
        return self._rule.reads

    def is_due(self, state: State, step: int) -> bool:
        return self._rule.is_due(state, step)

    def advance(
        self, state: State, step: int, measured: Mapping[str, float], total_steps: int
    ) -> State:
        return self._rule.advance(state, step, measured, total_steps)

    def start(self) -> State:
        return self._rule.start()


def make_ladder(rungs: Iterable[Bits | str], path: Schedule) -> Ladder | AdaptiveLadder:
    """Return the ladder of these rungs for any path."""
    return (AdaptiveLadder if path.is_adaptive else Ladder)(rungs, path)
