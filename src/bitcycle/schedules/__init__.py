"""Precision schedules: pure functions (step, total_steps) -> bits.

base.py            Schedule, the registry, times and checks
cycle.py           Cycle and its ten names, Anneal, Triangle
simple.py          Static, Ramp, Stages
function.py        schedules that are evaluated: Python functions, classes with bits_at alone
compose.py         Delay, Sequence
adaptive.py        Adaptive: bits that follow a metric of the training
adaptive_rules.py  Plateau, PFQ, NoiseSwitch
text.py            parse_schedule: schedules from text
preview.py         Preview: shares, mean bits and cost of a schedule over a run
segments.py        stretches of equal bits
"""

from bitcycle.schedules.adaptive import Adaptive
from bitcycle.schedules.adaptive_rules import PFQ, NoiseSwitch, Plateau
from bitcycle.schedules.base import (
    SCHEDULES,
    Schedule,
    ScheduleInfo,
    list_schedules,
    schedule_from_dict,
)
from bitcycle.schedules.compose import Delay, Sequence
from bitcycle.schedules.cycle import PROFILES, Anneal, Cycle, Profile, Triangle, schedule
from bitcycle.schedules.preview import Preview
from bitcycle.schedules.simple import Ramp, Stages, Static
from bitcycle.schedules.text import ScheduleLike, parse_schedule

__all__ = [
    "PFQ",
    "PROFILES",
    "SCHEDULES",
    "Adaptive",
    "Anneal",
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
