"""The states of the adaptive schedules of one run: told after every step, saved and taken back."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

from bitcycle.schedules.adaptive import Adaptive, State
from bitcycle.schedules.base import Schedule
from bitcycle.schedules.checks import Bits

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
