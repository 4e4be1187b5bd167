"""Stretches of equal bits in a schedule, found without visiting every step.

Between two turning points a schedule only rises or only falls, so that the steps where its bits
change can be found by bisection: a cycle of 32,000 steps takes a few dozen evaluations of the
schedule's own rule, and the result is the same as that of `schedule.values`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from bitcycle.schedules import Bits, Cycle, Delay, Ramp, Schedule, Stages, Static
from bitcycle.schedules.base import to_spans, to_step
from bitcycle.schedules.cycle import Anneal, Cyclic, Triangle


class Run(NamedTuple):
    """Steps start, ..., stop - 1 at the same bits."""

    bits: Bits
    start: int
    stop: int


def find_runs(schedule: Schedule, total_steps: int) -> list[Run]:
    """The stretches of equal bits, in order.

    >>> [tuple(run) for run in find_runs(Cycle(3, 5, cycles=2), 64_000)][:4]
    [(3, 0, 10667), (4, 10667, 21334), (5, 21334, 32000), (3, 32000, 42667)]
    """
    schedule.check_span(total_steps)
    return _join(_pieces(schedule, total_steps))


def count_steps(first: list[Run], second: list[Run]) -> dict[tuple[Bits, Bits], int]:
    """How many steps have which pair of bits, of two schedules over the same run.

    >>> runs = [find_runs(schedule, 12) for schedule in (Ramp(3, 4), Static(8))]
    >>> count_steps(*runs)  # 3 bits for 3 steps, then 4 bits
    {(3, 8): 3, (4, 8): 9}
    """
    if first[-1].stop != second[-1].stop:
        raise ValueError(
            f"runs of {first[-1].stop} and {second[-1].stop} steps cannot be counted together"
        )
    steps: Counter[tuple[Bits, Bits]] = Counter()
    i = j = start = 0
    while i < len(first):
        stop = min(first[i].stop, second[j].stop)
        steps[first[i].bits, second[j].bits] += stop - start
        i, j, start = i + (first[i].stop == stop), j + (second[j].stop == stop), stop
    return dict(steps)


def _pieces(schedule: Schedule, total_steps: int) -> Iterator[Run]:
    """Stretches of equal bits; neighbours may still be equal."""
    if isinstance(schedule, Delay):
        first = to_step(schedule.start, total_steps, "start =")
        if first:
            yield Run(schedule.low, 0, first)
        if first < total_steps:
            for bits, start, stop in _pieces(schedule.schedule, total_steps - first):
                yield Run(bits, start + first, stop + first)
    elif isinstance(schedule, Cycle | Anneal | Triangle):
        yield from _cycles(schedule, total_steps)
    elif isinstance(schedule, Static | Ramp):
        yield from _bisect(schedule, total_steps, 0, total_steps)
    elif isinstance(schedule, Stages):
        spans = to_spans(tuple(end for _, end in schedule.stages), total_steps, "stages")
        for (bits, _), (start, stop) in zip(schedule.stages, spans, strict=True):
            if start < stop:
                yield Run(bits, start, stop)
    else:  # where it turns is not known
        yield from _list(schedule, total_steps)


def _cycles(schedule: Cyclic, total_steps: int) -> Iterator[Run]:
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
        for bits, start, stop in legs[k % 2]:
            yield Run(bits, start - origin + shift, stop - origin + shift)


def _bisect(schedule: Schedule, total_steps: int, start: int, stop: int) -> Iterator[Run]:
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
        yield Run(bits, start, other)
        start = other


def _list(schedule: Schedule, total_steps: int) -> Iterator[Run]:
    start = 0
    for bits, run in groupby(schedule.values_over(total_steps)):
        stop = start + sum(1 for _ in run)
        yield Run(bits, start, stop)
        start = stop


def _join(runs: Iterator[Run]) -> list[Run]:
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].bits == run.bits:
            joined[-1] = Run(run.bits, joined[-1].start, run.stop)
        else:
            joined.append(run)
    return joined
