"""The adaptive schedules: `Plateau`, `PFQ` (FracTrain) and `NoiseSwitch`.

`schedules/adaptive.py` explains their state and how the scheduler advances it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from bitcycle.bits import PlainBits
from bitcycle.registry import unknown_name
from bitcycle.schedules.adaptive import (
    NEW_WINDOW,
    Adaptive,
    State,
    add_to_window,
    check_number,
    check_window,
    note_short_run,
    window_steps,
)
from bitcycle.schedules.base import (
    SCHEDULES,
    Ranged,
    Time,
    check_count,
    check_levels,
    levels_words,
    pluralize,
)

Source = Literal["loss", "validation"]
SOURCES: tuple[Source, ...] = ("loss", "validation")  # of Plateau
NUM_CLOSE = 5  # of PFQ: windows whose means must be close
NUM_SCALE = 10  # of PFQ: first windows, whose mean is the scale
NUM_SHRINKS = 2  # of PFQ: turns that shrink eps
FACTOR = math.sqrt(3)  # of NoiseSwitch
MOMENTUM = 0.9  # of NoiseSwitch's means: 0.9 * old + 0.1 * new, from the first measurement on


@SCHEDULES.register("plateau")
@dataclass(frozen=True, eq=False, repr=False)
class Plateau(Ranged, Adaptive):
    """The next level, from low to high, when a metric has stopped improving.

    M is the mean loss of `window` steps, or a validation metric for which lower is better. With the
    best M so far,

        improved = M < best - threshold * |best|        (the first M always is)

    After more than `patience` values of M in a row without improvement, the bits rise by one
    level and the count restarts; the best is kept. The settings are those of torch's
    `ReduceLROnPlateau`.

    on: "loss", of every step, or "validation", at every evaluation (window has no effect then).
    window: steps, or a fraction of the run.

    >>> rule = Plateau(3, 5, window=1, patience=1)
    >>> state = rule.start()
    >>> for step, loss in enumerate([2.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5]):
    ...     state = rule.advance(state, step, {"loss": loss}, total_steps=100)
    >>> state["turns"]  # two without improvement: 4 bits from step 4 on, 5 bits from step 7 on
    [4, 7]
    """

    window: Time = 0.00625
    patience: int = 4
    threshold: float = 0.01
    on: Source = "loss"

    grammar: ClassVar[str] = ":levels:window=:patience=:threshold=[:on=]"
    forms: ClassVar[tuple[str, ...]] = ("plateau:3-8:window=40", "plateau:4,8,fp32:window=40")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.window)
        check_count(self.patience, "patience", least=0)
        if not isinstance(self.threshold, int | float) or not 0 <= self.threshold < 1:
            raise ValueError(f"threshold must be a number from 0 to below 1, got {self.threshold}")
        object.__setattr__(self, "threshold", float(self.threshold))
        if self.on not in SOURCES:
            raise unknown_name("metric to follow", self.on, SOURCES)

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
        if self.on != "loss" or len(self.levels) == 1:
            return []
        # the first window always improves
        num_windows = 1 + (self.patience + 1) * (len(self.levels) - 1)
        return note_short_run(
            self, num_windows * window_steps(self.window, total_steps), total_steps
        )

    def describe(self) -> str:
        what = "mean loss" if self.on == "loss" else "validation metric"
        times = "" if self.patience == 0 else f" {self.patience + 1} times in a row"
        rise = f"level by level {levels_words(self.levels)}"
        return f"{rise}, the next when the {what} did not improve{times}"


class _Listed(Adaptive):
    """A rule whose levels are the field `bits`."""

    bits: tuple[PlainBits, ...]

    @property
    def levels(self) -> tuple[PlainBits, ...]:
        return self.bits


@SCHEDULES.register("pfq")
@dataclass(frozen=True, eq=False, repr=False)
class PFQ(_Listed):
    """The next bits of a list whenever the training loss has settled (FracTrain).

    After every `window` steps, with L = the mean loss of the window,

        scale = the mean of L over the first 10 windows (over those there are, until then)
        turn  = |L_i - L_last| <= eps * scale for each of the last 5 windows

    A turn moves to the next bits and starts 5 new windows. The first two turns multiply eps by
    alpha. Lists of equal length and settings turn at the same steps: forward 3,4,6,8 with backward
    6,6,8,8 is the paper's example.

    window: steps, or a fraction of the run; 0.00625 is the paper's 400 of 64,000 steps (an epoch).

    >>> rule = PFQ((3, 8), window=1)
    >>> state = rule.start()
    >>> for step, loss in enumerate([2.0, 1.0, 1.0, 1.01, 1.0, 1.0]):
    ...     state = rule.advance(state, step, {"loss": loss}, total_steps=100)
    >>> state["turns"]  # the last five are close: 8 bits from step 6 on
    [6]
    """

    bits: tuple[PlainBits, ...]
    window: Time = 0.00625
    eps: float = 0.05
    alpha: float = 0.3

    grammar: ClassVar[str] = ":bits:window=:eps=:alpha="
    forms: ClassVar[tuple[str, ...]] = ("pfq:3,4,6,8:window=40",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", check_levels(self.bits))
        check_window(self.window)
        object.__setattr__(self, "eps", check_number(self.eps, "eps"))
        object.__setattr__(self, "alpha", check_number(self.alpha, "alpha", most=1))

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
        first = state["first"] if len(state["first"]) == NUM_SCALE else [*state["first"], mean]
        last = [*state["last"], mean][-NUM_CLOSE:]
        turns = state["turns"]
        scale = abs(sum(first) / len(first))
        eps = self.eps * self.alpha ** min(len(turns), NUM_SHRINKS)
        if len(last) == NUM_CLOSE and all(abs(each - mean) <= eps * scale for each in last):
            turns, last = [*turns, step + 1], []
        return {**state, "turns": turns, "first": first, "last": last}

    def check_span(self, total_steps: int) -> None:
        window_steps(self.window, total_steps)

    def notes_over(self, total_steps: int) -> list[str]:
        least = NUM_CLOSE * window_steps(self.window, total_steps)
        return note_short_run(self, least * (len(self.bits) - 1), total_steps)

    def describe(self) -> str:
        return f"level by level {levels_words(self.bits)}, the next whenever the loss has settled"


@SCHEDULES.register("noise")
@dataclass(frozen=True, eq=False, repr=False)
class NoiseSwitch(_Listed):
    """The next bits of a list when rounding noise exceeds the gradient; never back.

    Every `every` steps two norms over all layers are measured: of the errors (the gradients with
    respect to a layer's output, which the backward pass rounds), and of their rounding noise. With
    running means of both,

        switch = mean gradient norm < factor * mean noise norm,   factor = sqrt(3)

    A switch starts new running means.

    >>> rule = NoiseSwitch((4, 8), every=10)
    >>> state = rule.start()
    >>> for step, norm in ((0, 2.0), (10, 1.8), (20, 0.1)):
    ...     norms = {"gradient_norm": norm, "noise_norm": 1.0}
    ...     state = rule.advance(state, step, norms, total_steps=100)
    >>> state["turns"], round(0.9 * (0.9 * 2.0 + 0.1 * 1.8) + 0.1 * 0.1, 3)  # below 1.732? not yet
    ([], 1.792)
    """

    bits: tuple[PlainBits, ...]
    every: int = 50
    factor: float = FACTOR

    grammar: ClassVar[str] = ":bits:every=[:factor=]"
    forms: ClassVar[tuple[str, ...]] = ("noise:4,8:every=50",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", check_levels(self.bits))
        check_count(self.every, "every")
        object.__setattr__(self, "factor", check_number(self.factor, "factor"))

    @property
    def reads(self) -> tuple[str, ...]:
        return ("gradient_norm", "noise_norm")

    def is_due(self, state: State, step: int) -> bool:
        return step % self.every == 0 and self.level_of(state) < len(self.levels) - 1

    def start(self) -> State:
        return {**super().start(), "gradient": None, "noise": None}

    def advance(
        self, state: State, step: int, measured: Mapping[str, float], total_steps: int
    ) -> State:
        if not self.is_due(state, step):
            return state
        gradient = _running(state["gradient"], measured["gradient_norm"])
        noise = _running(state["noise"], measured["noise_norm"])
        if gradient < self.factor * noise:
            return {"turns": [*state["turns"], step + 1], "gradient": None, "noise": None}
        return {**state, "gradient": gradient, "noise": noise}

    def notes_over(self, total_steps: int) -> list[str]:
        # step 0 is the first that it measures
        return note_short_run(self, self.every * (len(self.bits) - 2) + 1, total_steps)

    def describe(self) -> str:
        return (
            f"level by level {levels_words(self.bits)}, the next when the gradient's norm is below "
            f"{self.factor:.4g} x that of its rounding noise, measured every "
            f"{pluralize(self.every, 'step')}"
        )


def _running(mean: float | None, value: float) -> float:
    return value if mean is None else MOMENTUM * mean + (1 - MOMENTUM) * value
