"""Segments: the stretches of equal bits in a schedule, found without evaluating every step.

Between two turning points a schedule only rises or only falls, so bisection finds the steps at
which its bits change. A cycle of 32,000 steps takes a few dozen evaluations. The segments cover
exactly the bits of `schedule.values`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from bitcycle.schedules.base import Bits, Schedule, to_spans, to_step
from bitcycle.schedules.compose import Delay
from bitcycle.schedules.cycle import Anneal, Cycle, Cyclic, Triangle
from bitcycle.schedules.ladder import Ladder
from bitcycle.schedules.simple import Ramp, Stages, Static


class Segment(NamedTuple):
    """Steps start, ..., stop - 1 at the same bits."""

    start: int
    stop: int
    bits: Bits


def find_segments(schedule: Schedule, total_steps: int) -> list[Segment]:
    """The segments of a schedule over a run, in order.

    >>> [tuple(segment) for segment in find_segments(Cycle(3, 5, cycles=2), 64_000)][:4]
    [(0, 10667, 3), (10667, 21334, 4), (21334, 32000, 5), (32000, 42667, 3)]
    """
    schedule.check_span(total_steps)
    joined: list[Segment] = []
    for segment in _pieces(schedule, total_steps):
        if joined and joined[-1].bits == segment.bits:
            joined[-1] = Segment(joined[-1].start, segment.stop, segment.bits)
        else:
            joined.append(segment)
    return joined


def _pieces(schedule: Schedule, total_steps: int) -> Iterator[Segment]:
    """Segments in order; neighbours may have the same bits."""
    if isinstance(schedule, Delay):
        first = to_step(schedule.start, total_steps, "start =")
        if first:
            yield Segment(0, first, schedule.low)
        if first < total_steps:
            for start, stop, bits in _pieces(schedule.schedule, total_steps - first):
                yield Segment(start + first, stop + first, bits)
    elif isinstance(schedule, Ladder):
        for start, stop, number in _pieces(schedule.path, total_steps):
            yield Segment(start, stop, schedule.rung_of(number))
    elif isinstance(schedule, Cycle | Anneal | Triangle):
        yield from _cycles(schedule, total_steps)
    elif isinstance(schedule, Static | Ramp):
        yield from _bisect(schedule, total_steps, 0, total_steps)
    elif isinstance(schedule, Stages):
        spans = to_spans(tuple(end for _, end in schedule.stages), total_steps, "stages")
        for (bits, _), (start, stop) in zip(schedule.stages, spans, strict=True):
            if start < stop:
                yield Segment(start, stop, bits)
    else:  # its turning points are not known
        start = 0
        for bits, group in groupby(schedule.values_over(total_steps)):
            stop = start + sum(1 for _ in group)
            yield Segment(start, stop, bits)
            start = stop


def _cycles(schedule: Cyclic, total_steps: int) -> Iterator[Segment]:
    """Cycle k begins at the first step t with t N >= k T; a triangle turns in its middle too."""
    num_legs = schedule.cycles * (2 if isinstance(schedule, Triangle) else 1)
    turns = [-(-k * total_steps // num_legs) for k in range(num_legs + 1)]
    if total_steps % num_legs:
        for start, stop in pairwise(turns):
            yield from _bisect(schedule, total_steps, start, stop)
        return
    length = total_steps // num_legs  # of every leg; legs two apart are the same
    legs = [
        list(_bisect(schedule, total_steps, start, start + length))
        for start in turns[: min(2, num_legs)]
    ]
    for k, shift in enumerate(turns[:-1]):
        origin = (k % 2) * length
        for start, stop, bits in legs[k % 2]:
            yield Segment(start - origin + shift, stop - origin + shift, bits)


def _bisect(schedule: Schedule, total_steps: int, start: int, stop: int) -> Iterator[Segment]:
    """A span in which the bits only rise or only fall."""
    while start < stop:
        bits = schedule.bits_at(start, total_steps)
        same, other = start, stop  # the last step known to have these bits, the first known not to
        while other - same > 1:
            middle = (same + other) // 2
            if schedule.bits_at(middle, total_steps) == bits:
                same = middle
            else:
                other = middle
        yield Segment(start, other, bits)
        start = other
