"""Precision schedules: pure functions (step, total_steps) -> bits, by class, by name or by text.

The adaptive ones, which follow the training, are the exception: see `adaptive`.
"""

from bitcycle.schedules.adaptive import Adaptive
from bitcycle.schedules.adaptive_noise import NoiseSwitch
from bitcycle.schedules.adaptive_pfq import PFQ
from bitcycle.schedules.adaptive_plateau import Plateau
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
