"""Precision schedules: pure functions (step, total_steps) -> bits, by class, by name or by text.

The adaptive ones, which follow the training, are the exception: see `adaptive`.
"""

from bitcycle.schedules.adaptive import Adaptive
from bitcycle.schedules.adaptive_rules import PFQ, NoiseSwitch, Plateau
from bitcycle.schedules.base import SCHEDULES, Bits, Schedule, ScheduleInfo, schedule_from_dict
from bitcycle.schedules.compose import Delay, Sequence
from bitcycle.schedules.cycle import (
    PROFILES,
    Anneal,
    Cycle,
    Profile,
    Triangle,
    list_schedules,
    schedule,
)
from bitcycle.schedules.preview import Preview
from bitcycle.schedules.simple import Ramp, Stages, Static
from bitcycle.schedules.text import ScheduleLike, parse_schedule

__all__ = [
    "PFQ",
    "PROFILES",
    "SCHEDULES",
    "Adaptive",
    "Anneal",
    "Bits",
    "Cycle",
    "Delay",
    "NoiseSwitch",
    "Plateau",
    "Preview",
    "Profile",
    "Ramp",
    "Schedule",
    "ScheduleInfo",
    "ScheduleLike",
    "Sequence",
    "Stages",
    "Static",
    "Triangle",
    "list_schedules",
    "parse_schedule",
    "schedule",
    "schedule_from_dict",
]
