"""Precision schedules: pure functions (step, total_steps) -> bits, by class, by name or by text."""

from bitcycle.schedules.base import SCHEDULES, Schedule, ScheduleInfo, schedule_from_dict
from bitcycle.schedules.checks import Bits
from bitcycle.schedules.compose import Delay, Sequence
from bitcycle.schedules.cycle import Cycle
from bitcycle.schedules.cyclic import Anneal, Triangle
from bitcycle.schedules.named import list_schedules, schedule
from bitcycle.schedules.preview import Preview
from bitcycle.schedules.profiles import PROFILES, Profile
from bitcycle.schedules.simple import Ramp, Stages, Static
from bitcycle.schedules.text import ScheduleLike, parse_schedule

__all__ = [
    "PROFILES",
    "SCHEDULES",
    "Anneal",
    "Bits",
    "Cycle",
    "Delay",
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
