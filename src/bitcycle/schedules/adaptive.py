"""Adaptive schedules: bits that follow a metric of the training, not only the step.

An adaptive schedule is a frozen description of a rule. The rule is a pure function of a state and
of what was measured in a step:

    state' = advance(state, step, measured, total_steps)

The state is plain JSON data. `PrecisionScheduler` keeps it in an `AdaptiveStates` and saves it with
its own state, so a resumed run continues with the same bits. `schedules/adaptive_rules.py` has the
rules; a new one is a class below `Adaptive`, registered in `SCHEDULES`.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from bitcycle.bits import PlainBits
from bitcycle.schedules.base import Schedule, Time, check_time, to_step

State = dict[str, Any]  # JSON types only; "turns": the first step of every level but the lowest
Metric = float | Mapping[str, float]


class Adaptive(Schedule):
    """Bits that rise from level to level by a rule and never fall.

    levels: the bits of each level. reads: the names of the metrics that the rule reads. Names in
    use: "loss" (of a step), "validation" (the metric of an evaluation, negated if higher is
    better), "gradient_norm" and "noise_norm" (see `bitcycle.collect`).
    """

    is_adaptive: ClassVar[bool] = True

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """The names of the metrics that the rule reads."""

    @abstractmethod
    def is_due(self, state: State, step: int) -> bool:
        """Whether the rule needs its metrics after this step; otherwise they are optional."""

    @abstractmethod
    def advance(
        self, state: State, step: int, measured: Mapping[str, float], total_steps: int
    ) -> State:
        """Return the state after a step. `measured` has every metric that the rule reads."""

    def start(self) -> State:
        """Return the state before step 0."""
        return {"turns": []}

    def level_of(self, state: State) -> int:
        """The level of the state."""
        return len(state["turns"])

    def bits_of(self, state: State, step: int) -> PlainBits:
        """The bits of a step, up to the first after the state."""
        return self.levels[bisect_right(state["turns"], step)]

    def check_state(self, state: object) -> State:
        """Return the state if it can be one of this rule; otherwise raise a ValueError."""
        expected = self.start()
        if not isinstance(state, Mapping) or set(state) != set(expected):
            raise ValueError(f"the state of {self} is a dict with {', '.join(expected)}; "
                             f"got {state!r:.200}")  # fmt: skip
        turns = state["turns"]
        if not isinstance(turns, list) or len(turns) >= len(self.levels) or turns != sorted(turns):
            raise ValueError(
                f"'turns' of {self} must be at most {len(self.levels) - 1} growing steps, got "
                f"{turns!r}"
            )
        return dict(state)

    def bits_at(self, step: int, total_steps: int) -> PlainBits:
        if step == 0:
            return self.levels[0]
        raise ValueError(
            f"{self} follows the training: its bits after step 0 are not known before the run"
        )

    def bit_widths(self, total_steps: int) -> set[PlainBits]:
        return set(self.levels)


# -- states ---------------------------------------------------------------------------------------


class AdaptiveStates:
    """The states of a scheduler's adaptive schedules, one per distinct schedule.

    >>> from bitcycle.schedules import parse_schedule
    >>> rule = parse_schedule("plateau:3-5:window=1:patience=0")
    >>> states = AdaptiveStates([rule], total_steps=10)
    >>> for step, loss in enumerate([2.0, 2.0, 1.0]):
    ...     states.update(step, loss)
    >>> [states.bits_at(rule, step) for step in range(4)]
    [3, 3, 4, 4]
    """

    def __init__(self, schedules: Iterable[Schedule], total_steps: int) -> None:
        self.total_steps = total_steps
        self._states: dict[Adaptive, State] = {
            schedule: schedule.start() for schedule in schedules if isinstance(schedule, Adaptive)
        }
        self.num_steps = 0  # that the states follow

    def __bool__(self) -> bool:
        return bool(self._states)

    @property
    def reads(self) -> frozenset[str]:
        """The names of all metrics that any rule reads."""
        return frozenset(name for rule in self._states for name in rule.reads)

    def bits_at(self, schedule: Adaptive, step: int) -> PlainBits:
        """The bits of a step, up to the present one."""
        if step > self.num_steps:
            raise ValueError(
                f"the bits of step {step} are not known at step {self.num_steps}: {schedule} "
                "follows the training"
            )
        return schedule.bits_of(self._states[schedule], step)

    def needs(self, step: int) -> frozenset[str]:
        """The names of the metrics that `update` needs for this step."""
        due = [rule for rule, state in self._states.items() if rule.is_due(state, step)]
        return frozenset(name for rule in due for name in rule.reads)

    def update(self, step: int, metric: Metric | None) -> None:
        """Advance all states by one step; on an error none changes.

        After the last step of the run the states stay, and so do the bits.
        """
        measured = self._measured(step, metric)
        if step + 1 < self.total_steps:
            self._states = {
                rule: rule.advance(state, step, measured, self.total_steps)
                if measured.keys() >= set(rule.reads)
                else state
                for rule, state in self._states.items()
            }
        self.num_steps = step + 1

    def _measured(self, step: int, metric: Metric | None) -> dict[str, float]:
        """The metrics that rules read, by name, as finite numbers."""
        names = self.reads
        passed: Mapping[Any, Any] = {}
        if isinstance(metric, Mapping):
            passed = metric
        elif metric is not None:
            if len(names) > 1:
                raise ValueError(f"metric={metric!r:.60} must be a dict with {_list(names)}")
            passed = dict.fromkeys(names, metric)
        for rule, state in self._states.items():
            missing = [name for name in rule.reads if passed.get(name) is None]
            if missing and rule.is_due(state, step):
                raise ValueError(
                    f"{rule} needs the {_list(missing)} of step {step}: scheduler.step(metric=...)"
                )
        read = {name: passed[name] for name in names if passed.get(name) is not None}
        return {name: _check_value(name, value, step) for name, value in read.items()}

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, State]:
        """Return a dict of JSON types, by the text of the schedule."""
        return {str(rule): copy.deepcopy(state) for rule, state in self._states.items()}

    def load_state_dict(self, saved: object, step: int) -> None:
        """Continue from saved states before `step`; on an error none changes."""
        if not self._states:
            return
        states = saved if isinstance(saved, Mapping) else {}
        missing = [str(rule) for rule in self._states if str(rule) not in states]
        if missing and step > 0:
            raise ValueError(
                f"the saved scheduler has no state of {missing[0]} at step {step}; it has states "
                f"of: {', '.join(states) or 'none'}"
            )
        loaded = {
            rule: copy.deepcopy(rule.check_state(states[str(rule)]))
            if str(rule) in states
            else rule.start()
            for rule in self._states
        }
        self._states, self.num_steps = loaded, step


def _check_value(name: str, value: Any, step: int) -> float:
    """Return a finite float, also from a tensor or array of one element; otherwise raise."""
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
            f"the {name} of step {step} must be finite for an adaptive schedule, got {number}"
        )
    return number


def _list(names: Iterable[str]) -> str:
    return " and ".join(sorted(names))


# -- windows: the mean of a metric over a number of steps -----------------------------------------


NEW_WINDOW: State = {"sum": 0.0, "count": 0}


def check_window(window: object) -> Time:
    """Return a window of at least one step: a step count or a fraction above 0."""
    if check_time(window, "window") == 0:
        raise ValueError("window must be at least one step, got 0")
    return window  # type: ignore[return-value]


def window_steps(window: Time, total_steps: int) -> int:
    """The number of steps of a window in a run of this length, at least one.

    >>> window_steps(0.00625, 64_000), window_steps(0.00625, 100), window_steps(20, 100)
    (400, 1, 20)
    """
    return max(1, to_step(window, total_steps, "window ="))


def add_to_window(state: State, value: float, length: int) -> tuple[State, float | None]:
    """The state with one more value, and the mean of the window if that was its last value."""
    total, number = state["sum"] + value, state["count"] + 1
    if number < length:
        return {**state, "sum": total, "count": number}, None
    return {**state, **NEW_WINDOW}, total / number


def note_short_run(schedule: Adaptive, earliest: int, total_steps: int) -> list[str]:
    """A warning if the run ends before `earliest`, the first step that can have the top."""
    if earliest < total_steps:
        return []
    return [
        f"{schedule} cannot reach its top in {total_steps:,} steps: step {earliest:,} is the first "
        "that can have it; shorten the window or the interval, or train for longer"
    ]


# -- checks and text of settings ------------------------------------------------------------------


def check_number(value: object, what: str, *, most: float | None = None) -> float:
    """Return a number above 0, and at most `most`, as a float; otherwise raise."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf") or (most is not None and value > most):  # type: ignore[operator]
        upper = "" if most is None else f" and at most {most:g}"
        raise ValueError(f"{what} must be a number above 0{upper}, got {value!r}")
    return float(value)  # type: ignore[arg-type]
