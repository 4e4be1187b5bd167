"""The ten published schedules by name ("Better Schedules for Low Precision Training", 2024)."""

from __future__ import annotations

from dataclasses import replace

from bitcycle.registry import unknown_name
from bitcycle.schedules.base import SCHEDULES, ScheduleInfo
from bitcycle.schedules.cycle import Cycle
from bitcycle.schedules.cyclic import DEFAULT_CYCLES


def schedule(name: str, *, low: int, high: int, cycles: int = DEFAULT_CYCLES) -> Cycle:
    """One of LR, CR, ER, RR (repeated), LT, CT, ET-H, ET-V, RT-H, RT-V (triangular).

    CR is the CPT paper's schedule. Upper and lower case are the same.

    >>> schedule("CR", low=3, high=8, cycles=8) == Cycle(3, 8, cycles=8)
    True
    """
    named = {key.lower(): example for key, example in Cycle.named().items()}
    if not isinstance(name, str) or name.lower() not in named:
        raise unknown_name("named schedule", name, Cycle.named())
    return replace(named[name.lower()], low=low, high=high, cycles=cycles)


def list_schedules() -> list[ScheduleInfo]:
    """Every name that a schedule's text can begin with: cost tier, example and one line.

    >>> [info.name for info in list_schedules() if info.tier == "low"]
    ['RR', 'RT-H']
    """
    tiers = ["high", "medium", "low", None]
    infos = [info for _, schedule_type in SCHEDULES.items() for info in schedule_type.infos()]
    return sorted(infos, key=lambda info: (tiers.index(info.tier), info.name))
