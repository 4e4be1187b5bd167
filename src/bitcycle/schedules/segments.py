"""Segments: the stretches of equal bits in a schedule, found without evaluating every step.

Between two turning points (`Schedule.turns`) a schedule only rises or only falls, so bisection
finds the steps at which its bits change. A cycle of 32,000 steps takes a few dozen evaluations.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from bitcycle.bits import PlainBits

if TYPE_CHECKING:
    from bitcycle.schedules.base import Schedule


class Segment(NamedTuple):
    """Steps start, ..., stop - 1 at the same bits."""

    start: int
    stop: int
    bits: PlainBits


def find_segments(schedule: Schedule, total_steps: int) -> list[Segment]:
    """The segments of a schedule over a run, in order.

    >>> from bitcycle.schedules import Cycle
    >>> [tuple(segment) for segment in find_segments(Cycle(3, 5, cycles=2), 64_000)][:4]
    [(0, 10667, 3), (10667, 21334, 4), (21334, 32000, 5), (32000, 42667, 3)]
    """
    schedule.check_span(total_steps)
    found: list[Segment] = []
    for start, stop in pairwise([*schedule.turns(total_steps), total_steps]):
        while start < stop:
            bits = schedule.bits_at(start, total_steps)
            end = _end_of(schedule, bits, total_steps, start, stop)
            if found and found[-1].bits == bits:
                start, _, _ = found.pop()
            found.append(Segment(start, end, bits))
            start = end
    return found


def _end_of(schedule: Schedule, bits: PlainBits, total_steps: int, start: int, stop: int) -> int:
    """The first step after `start` with other bits, at most `stop`."""
    same, other = start, stop  # the last step known to have these bits, the first known not to
    while other - same > 1:
        middle = (same + other) // 2
        if schedule.bits_at(middle, total_steps) == bits:
            same = middle
        else:
            other = middle
    return other
