"""What an adaptive schedule is: bits that follow the training instead of the step.

Every other schedule is a pure function of the step. An adaptive one is a frozen description of a
rule, and the rule is a pure function of a state and of what was measured in a step:

    state' = advance(state, step, measured, total_steps)

The state is plain JSON data. A `PrecisionScheduler` owns it (`AdaptiveStates`), saves it and takes
it back, so that a resumed run goes on with the same bits.

A new rule is one file with a class below `Adaptive`, registered in `SCHEDULES`.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from bitcycle.precision import check_bits
from bitcycle.schedules.base import Bits, Schedule, Time, bits_text, check_time, order, to_step

State = dict[str, Any]  # JSON types only; "turns": the first step of every level but the lowest


class Adaptive(Schedule):
    """Bits that rise from level to level when the training asks for it, and never fall.

    levels: the bits of each level. reads: the names of what the rule must be told. Names in use:
    "loss" (of a step), "validation" (the metric of an evaluation, negative if it grows as the
    model gets better), "gradient_norm" and "noise_norm" (see `bitcycle.collect`).
    """

    is_adaptive: ClassVar[bool] = True

    @property
    @abstractmethod
    def levels(self) -> tuple[Bits, ...]:
        """The bits of each level, in order."""

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """What the rule is told after a step, by name."""

    @abstractmethod
    def is_due(self, state: State, step: int) -> bool:
        """Whether it must be told after this step; at other steps that may be left out."""

    @abstractmethod
    def advance(
        self, state: State, step: int, measured: Mapping[str, float], total_steps: int
    ) -> State:
        """The state after a step, of which all that the rule reads was measured."""

    def start(self) -> State:
        """The state before step 0."""
        return {"turns": []}

    def level_of(self, state: State) -> int:
        """The level that the state has come to."""
        return len(state["turns"])

    def bits_of(self, state: State, step: int) -> Bits:
        """The bits of a step that was reached already."""
        return self.levels[bisect_right(state["turns"], step)]

    def check_state(self, state: object) -> State:
        """The state itself if it may be one of this rule's; otherwise a ValueError."""
        expected = self.start()
        if not isinstance(state, Mapping) or set(state) != set(expected):
            raise ValueError(f"the state of {self} is a dict with {', '.join(expected)}; "
                             f"got {state!r:.200}")  # fmt: skip
        turns = state["turns"]
        if not isinstance(turns, list) or len(turns) >= len(self.levels) or turns != sorted(turns):
            raise ValueError(
                f"'turns' of {self} are at most {len(self.levels) - 1} growing steps, got {turns!r}"
            )
        return dict(state)

    def bits_at(self, step: int, total_steps: int) -> Bits:
        if step == 0:
            return self.levels[0]
        raise ValueError(
            f"{self} follows the training ({self.describe()}): its bits after step 0, and so a "
            "preview, a picture and a cost, are not known before the run. A CostMeter counts the "
            "cost while it trains (result.json has it in the end), and the history() of a "
            "PrecisionScheduler has the bits so far"
        )

    def bit_widths(self, total_steps: int) -> set[Bits]:
        return set(self.levels)


def check_levels(bits: object, what: str) -> tuple[Bits, ...]:
    """Two or more bits that never fall, as a tuple."""
    if not isinstance(bits, list | tuple) or len(bits) < 2:
        raise ValueError(f"{what} needs a list of at least two bits, such as 3, 8; got {bits!r}")
    levels = tuple(check_bits(one) for one in bits)
    if list(levels) != sorted(levels, key=order):
        raise ValueError(f"the bits of {what} must not fall, got {levels_text(levels)}; sort them")
    return levels


def levels_text(levels: Iterable[Bits]) -> str:
    """'3,4,fp32'."""
    return ",".join(bits_text(bits) for bits in levels)


def check_number(value: object, what: str, *, most: float | None = None) -> float:
    """A number above 0, and at most `most`, as a float."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf") or (most is not None and value > most):  # type: ignore[operator]
        upper = "" if most is None else f" and at most {most:g}"
        raise ValueError(f"{what} must be a number above 0{upper}, got {value!r}")
    return float(value)  # type: ignore[arg-type]


def check_count(value: object, what: str, *, least: int = 1) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what} must be a whole number of at least {least}, got {value!r}")
    return value


# -- windows: the mean of what was measured over a number of steps ---------------------------------

NEW_WINDOW: State = {"sum": 0.0, "count": 0}


def check_window(window: object) -> Time:
    """A length of at least one step: a step count or a fraction of the run above 0."""
    if check_time(window, "window") == 0:
        raise ValueError("window must be at least one step, got 0")
    return window  # type: ignore[return-value]


def window_steps(window: Time, total_steps: int) -> int:
    """How many steps a window has in a run of this length, at least one.

    >>> window_steps(0.00625, 64_000), window_steps(0.00625, 100), window_steps(20, 100)
    (400, 1, 20)
    """
    return max(1, to_step(window, total_steps, "window ="))


def add_to_window(state: State, value: float, length: int) -> tuple[State, float | None]:
    """The state with one more value, and the mean if that filled the window, which is then new."""
    total, number = state["sum"] + value, state["count"] + 1
    if number < length:
        return {**state, "sum": total, "count": number}, None
    return {**state, **NEW_WINDOW}, total / number


def note_short_run(schedule: Adaptive, earliest: int, total_steps: int) -> list[str]:
    """Says so when a run ends before `earliest`, the first step that can have the top."""
    if earliest < total_steps:
        return []
    return [
        f"{schedule} cannot get to its top in {total_steps:,} steps, whatever the training does: "
        f"step {earliest:,} is the first that can have it; look more often or train for longer"
    ]


Metric = float | Mapping[str, float]
_ONE = "pass it as a number: scheduler.step(metric=loss.item())"


class AdaptiveStates:
    """One state for each distinct adaptive schedule; empty where there is none.

    >>> from bitcycle.schedules import parse_schedule
    >>> rule = parse_schedule("plateau:3-5:window=1:patience=0")
    >>> states = AdaptiveStates([rule], total_steps=10)
    >>> for step, loss in enumerate([2.0, 2.0, 1.0]):
    ...     states.tell(step, loss)
    >>> [states.bits_at(rule, step) for step in range(4)]
    [3, 3, 4, 4]
    """

    def __init__(self, schedules: Iterable[Schedule], total_steps: int) -> None:
        self.total_steps = total_steps
        self._states: dict[Adaptive, State] = {
            schedule: schedule.start() for schedule in schedules if isinstance(schedule, Adaptive)
        }
        self.num_told = 0  # steps

    def __bool__(self) -> bool:
        return bool(self._states)

    @property
    def reads(self) -> frozenset[str]:
        """All that any of the rules reads, by name."""
        return frozenset(name for rule in self._states for name in rule.reads)

    def bits_at(self, schedule: Adaptive, step: int) -> Bits:
        """The bits of a step up to the present one."""
        if step > self.num_told:
            raise ValueError(
                f"the bits of step {step} are not known at step {self.num_told}: {schedule} "
                "follows the training"
            )
        return schedule.bits_of(self._states[schedule], step)

    def needs(self, step: int) -> frozenset[str]:
        """What must be told after this step, by name."""
        due = [rule for rule, state in self._states.items() if rule.is_due(state, step)]
        return frozenset(name for rule in due for name in rule.reads)

    def tell(self, step: int, metric: Metric | None) -> None:
        """What was measured in this step; all rules move on together or, on an error, none.

        After the last step nothing moves: the bits are held.
        """
        measured = self._measured(step, metric)
        if step + 1 < self.total_steps:
            self._states = {
                rule: rule.advance(state, step, measured, self.total_steps)
                if measured.keys() >= set(rule.reads)
                else state
                for rule, state in self._states.items()
            }
        self.num_told = step + 1

    def _measured(self, step: int, metric: Metric | None) -> dict[str, float]:
        """The metric by name, checked as far as any rule reads it."""
        names = self.reads
        given: Mapping[Any, Any] = {}
        if isinstance(metric, Mapping):
            given = metric
        elif metric is not None:
            if len(names) > 1:
                raise ValueError(f"metric={metric!r:.60}: the schedules read "
                                 f"{_list(names)}; pass a dict with these names")  # fmt: skip
            given = dict.fromkeys(names, metric)
        for rule, state in self._states.items():
            missing = [name for name in rule.reads if given.get(name) is None]
            if missing and rule.is_due(state, step):
                how = _ONE if rule.reads == ("loss",) and len(names) == 1 else (
                    f"pass scheduler.step(metric={{{', '.join(f'{n!r}: ...' for n in rule.reads)}}}"
                    ")"
                )  # fmt: skip
                raise ValueError(
                    f"{rule} follows the training and was not told the {_list(missing)} of step "
                    f"{step}; {how}"
                )
        read = {name: given[name] for name in names if given.get(name) is not None}
        return {name: _check_value(name, value, step) for name, value in read.items()}

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, State]:
        """JSON types only, by the text of the schedule."""
        return {str(rule): copy.deepcopy(state) for rule, state in self._states.items()}

    def load_state_dict(self, saved: object, step: int) -> None:
        """Go on from there, before `step`; checked before anything is taken."""
        if not self._states:
            return
        states = saved if isinstance(saved, Mapping) else {}
        missing = [str(rule) for rule in self._states if str(rule) not in states]
        if missing and step > 0:
            raise ValueError(
                f"the saved scheduler has no state of {missing[0]}, whose bits at step {step} "
                f"follow from the training so far; saved: {', '.join(states) or 'none'}"
            )
        loaded = {
            rule: copy.deepcopy(rule.check_state(states[str(rule)]))
            if str(rule) in states
            else rule.start()
            for rule in self._states
        }
        self._states, self.num_told = loaded, step


def _check_value(name: str, value: Any, step: int) -> float:
    """A finite number; tensors and arrays of one element count as one."""
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"the {name} of step {step} must be a number, got {value!r:.60} "
            f"({type(value).__name__})"
        ) from None
    if not math.isfinite(number):
        raise ValueError(
            f"the {name} of step {step} is {number}: an adaptive schedule cannot follow it; lower "
            "the learning rate or raise the lowest bits"
        )
    return number


def _list(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))
