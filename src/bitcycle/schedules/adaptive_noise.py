"""More bits when rounding drowns the gradient (after "FP4 All the Way", 2025)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from bitcycle.schedules.adaptive import (
    Adaptive,
    State,
    check_count,
    check_levels,
    check_number,
    levels_text,
    note_short_run,
)
from bitcycle.schedules.base import SCHEDULES
from bitcycle.schedules.checks import Bits, count

if TYPE_CHECKING:
    from bitcycle.schedules.text import Reader

FACTOR = math.sqrt(3)
MOMENTUM = 0.9  # running means: 0.9 * old + 0.1 * new, beginning with the first measurement


@SCHEDULES.register("noise")
@dataclass(frozen=True, eq=False)
class NoiseSwitch(Adaptive):
    """The next bits of a list when rounding noise drowns the gradient; never back.

    Every `every` steps two norms over all layers are measured: of the errors (the gradients that
    are quantized in backward), and of what quantization added to them. With their running means,

        switch = mean gradient norm < factor * mean noise norm,   factor = sqrt(3)

    The running means begin anew with the new bits.

    >>> rule = NoiseSwitch((4, 8), every=10)
    >>> state = rule.start()
    >>> for step, norm in ((0, 2.0), (10, 1.8), (20, 0.1)):
    ...     norms = {"gradient_norm": norm, "noise_norm": 1.0}
    ...     state = rule.advance(state, step, norms, total_steps=100)
    >>> state["turns"], round(0.9 * (0.9 * 2.0 + 0.1 * 1.8) + 0.1 * 0.1, 3)  # below 1.732? not yet
    ([], 1.792)
    """

    bits: tuple[Bits, ...]
    every: int = 50
    factor: float = FACTOR

    forms: ClassVar[tuple[str, ...]] = ("noise:4,8:every=50",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", check_levels(self.bits, "noise"))
        check_count(self.every, "every")
        object.__setattr__(self, "factor", check_number(self.factor, "factor"))

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
        # it looks at step 0 first
        return note_short_run(self, self.every * (len(self.bits) - 2) + 1, total_steps)

    def text(self) -> str:
        factor = "" if self.factor == FACTOR else f":factor={self.factor!r}"
        return f"noise:{levels_text(self.bits)}:every={self.every}{factor}"

    def describe(self) -> str:
        return (
            f"{levels_text(self.bits)} bits, the next ones when the gradient's norm is below "
            f"{self.factor:.4g} x that of its rounding noise, measured every "
            f"{count(self.every, 'step')}"
        )

    @classmethod
    def read(cls, head: str, reader: Reader) -> Self:
        reader.expect(":", "bits such as 4,8")
        bits = reader.bits_list()
        return cls(bits, **reader.settings(("every", "factor")))


def _running(mean: float | None, value: float) -> float:
    return value if mean is None else MOMENTUM * mean + (1 - MOMENTUM) * value
