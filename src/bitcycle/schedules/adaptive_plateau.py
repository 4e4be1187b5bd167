"""One more bit when a metric stops improving, as learning rates are lowered on a plateau."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from bitcycle.registry import unknown_name
from bitcycle.schedules.adaptive import (
    NEW_WINDOW,
    Adaptive,
    State,
    add_to_window,
    check_count,
    check_window,
    note_short_run,
    window_steps,
)
from bitcycle.schedules.base import SCHEDULES
from bitcycle.schedules.checks import Bits, check_range
from bitcycle.schedules.times import Time

if TYPE_CHECKING:
    from bitcycle.schedules.text import Reader

Source = Literal["loss", "validation"]
SOURCES: tuple[Source, ...] = ("loss", "validation")


@SCHEDULES.register("plateau")
@dataclass(frozen=True, eq=False)
class Plateau(Adaptive):
    """One bit more when a metric has not improved for a while; from low to high.

    M is the mean loss of `window` steps, or a validation metric that falls as the model gets
    better. With the best M so far,

        improved = M < best - threshold * |best|        (the first M always is)

    After more than `patience` M in a row that did not improve, the bits rise by one and the count
    starts again; the best stays. These are the words of torch's `ReduceLROnPlateau`.

    on: "loss", of every step, or "validation", whenever it is measured (window has no meaning
    then). window: steps, or a fraction of the run.

    >>> rule = Plateau(3, 5, window=1, patience=1)
    >>> state = rule.start()
    >>> for step, loss in enumerate([2.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5]):
    ...     state = rule.advance(state, step, {"loss": loss}, total_steps=100)
    >>> state["turns"]  # two without improvement: 4 bits from step 4 on, 5 bits from step 7 on
    [4, 7]
    """

    low: int
    high: int
    window: Time = 0.00625
    patience: int = 4
    threshold: float = 0.01
    on: Source = "loss"

    forms: ClassVar[tuple[str, ...]] = ("plateau:3-8:window=40",)

    def __post_init__(self) -> None:
        check_range(self.low, self.high)
        check_window(self.window)
        check_count(self.patience, "patience", least=0)
        if not isinstance(self.threshold, int | float) or not 0 <= self.threshold < 1:
            raise ValueError(f"threshold must be a number from 0 to below 1, got {self.threshold}")
        object.__setattr__(self, "threshold", float(self.threshold))
        if self.on not in SOURCES:
            raise unknown_name("metric to follow", self.on, SOURCES)

    @property
    def levels(self) -> tuple[Bits, ...]:
        return tuple(range(self.low, self.high + 1))

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.on,)

    def is_due(self, state: State, step: int) -> bool:
        return self.on == "loss"

    def start(self) -> State:
        return {**super().start(), **NEW_WINDOW, "best": None, "num_bad": 0}

    def advance(
        self, state: State, step: int, measured: Mapping[str, float], total_steps: int
    ) -> State:
        if self.level_of(state) == len(self.levels) - 1:
            return state
        length = window_steps(self.window, total_steps) if self.on == "loss" else 1
        state, mean = add_to_window(state, measured[self.on], length)
        if mean is None:
            return state
        best, turns, num_bad = state["best"], state["turns"], state["num_bad"] + 1
        if best is None or mean < best - self.threshold * abs(best):
            best, num_bad = mean, 0
        if num_bad > self.patience:
            turns, num_bad = [*turns, step + 1], 0
        return {**state, "turns": turns, "best": best, "num_bad": num_bad}

    def check_span(self, total_steps: int) -> None:
        window_steps(self.window, total_steps)

    def notes_over(self, total_steps: int) -> list[str]:
        if self.on != "loss" or self.low == self.high:
            return []
        # the first window is an improvement
        num_windows = 1 + (self.patience + 1) * (self.high - self.low)
        return note_short_run(
            self, num_windows * window_steps(self.window, total_steps), total_steps
        )

    def text(self) -> str:
        pieces = [f"plateau:{self.low}-{self.high}", f"window={self.window!r}",
                  f"patience={self.patience}", f"threshold={self.threshold!r}"]  # fmt: skip
        return ":".join([*pieces, *([] if self.on == "loss" else [f"on={self.on}"])])

    def describe(self) -> str:
        what = "mean loss" if self.on == "loss" else "validation metric"
        times = "" if self.patience == 0 else f" {self.patience + 1} times in a row"
        return f"{self.low} to {self.high} bits, one more when the {what} did not improve{times}"

    @classmethod
    def read(cls, head: str, reader: Reader) -> Self:
        reader.expect(":", "a range of bits")
        low, high = reader.bit_range()
        return cls(low, high, **reader.settings(("window", "patience", "threshold", "on")))
