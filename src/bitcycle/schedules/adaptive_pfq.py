"""Progressive fractional quantization (FracTrain, 2020): more bits when the loss has settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from bitcycle.schedules.adaptive import (
    NEW_WINDOW,
    Adaptive,
    State,
    add_to_window,
    check_levels,
    check_number,
    check_window,
    levels_text,
    note_short_run,
    window_steps,
)
from bitcycle.schedules.base import SCHEDULES
from bitcycle.schedules.checks import Bits
from bitcycle.schedules.times import Time

if TYPE_CHECKING:
    from bitcycle.schedules.text import Reader

KEPT = 5  # windows whose means must be close to each other
SCALED = 10  # windows from whose mean the scale is made
TIGHTENED = 2  # turning points after which eps shrinks


@SCHEDULES.register("pfq")
@dataclass(frozen=True, eq=False)
class PFQ(Adaptive):
    """The next bits of a list whenever the training loss has settled (FracTrain).

    After every `window` steps, with L = the mean loss of the window,

        scale = the mean of L over the first 10 windows (over those there are, until then)
        turn  = the last 5 windows are there and |L_i - L_last| <= eps * scale for each of them

    A turn goes on to the next bits and forgets the 5 windows; the first two make eps smaller, by
    the factor alpha each. Lists of equal length and settings turn at the same steps: forward
    3,4,6,8 with backward 6,6,8,8 is the paper's example.

    window: steps, or a fraction of the run; 0.00625 is the published 400 of 64,000 (an epoch).

    >>> rule = PFQ((3, 8), window=1)
    >>> state = rule.start()
    >>> for step, loss in enumerate([2.0, 1.0, 1.0, 1.01, 1.0, 1.0]):
    ...     state = rule.advance(state, step, {"loss": loss}, total_steps=100)
    >>> state["turns"]  # the last five are close: 8 bits from step 6 on
    [6]
    """

    bits: tuple[Bits, ...]
    window: Time = 0.00625
    eps: float = 0.05
    alpha: float = 0.3

    forms: ClassVar[tuple[str, ...]] = ("pfq:3,4,6,8:window=40",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", check_levels(self.bits, "pfq"))
        check_window(self.window)
        object.__setattr__(self, "eps", check_number(self.eps, "eps"))
        object.__setattr__(self, "alpha", check_number(self.alpha, "alpha", most=1))

    @property
    def low(self) -> Bits:
        return self.bits[0]

    @property
    def high(self) -> Bits:
        return self.bits[-1]

    @property
    def levels(self) -> tuple[Bits, ...]:
        return self.bits

    @property
    def reads(self) -> tuple[str, ...]:
        return ("loss",)

    def is_due(self, state: State, step: int) -> bool:
        return True

    def start(self) -> State:
        return {**super().start(), **NEW_WINDOW, "last": [], "first": []}

    def advance(
        self, state: State, step: int, measured: Mapping[str, float], total_steps: int
    ) -> State:
        if self.level_of(state) == len(self.levels) - 1:
            return state
        length = window_steps(self.window, total_steps)
        state, mean = add_to_window(state, measured["loss"], length)
        if mean is None:
            return state
        first = state["first"] if len(state["first"]) == SCALED else [*state["first"], mean]
        last = [*state["last"], mean][-KEPT:]
        turns = state["turns"]
        scale = abs(sum(first) / len(first))
        eps = self.eps * self.alpha ** min(len(turns), TIGHTENED)
        if len(last) == KEPT and all(abs(each - mean) <= eps * scale for each in last):
            turns, last = [*turns, step + 1], []
        return {**state, "turns": turns, "first": first, "last": last}

    def check_span(self, total_steps: int) -> None:
        window_steps(self.window, total_steps)

    def notes_over(self, total_steps: int) -> list[str]:
        least = KEPT * window_steps(self.window, total_steps)
        return note_short_run(self, least * (len(self.bits) - 1), total_steps)

    def text(self) -> str:
        return (
            f"pfq:{levels_text(self.bits)}:window={self.window!r}:eps={self.eps!r}"
            f":alpha={self.alpha!r}"
        )

    def describe(self) -> str:
        return f"{levels_text(self.bits)} bits, the next ones whenever the loss has settled"

    @classmethod
    def read(cls, head: str, reader: Reader) -> Self:
        reader.expect(":", "bits such as 3,4,6,8")
        bits = reader.bits_list()
        return cls(bits, **reader.settings(("window", "eps", "alpha")))
