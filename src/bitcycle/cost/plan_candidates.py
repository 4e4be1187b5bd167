"""The schedules a plan chooses from: every published one, within the bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bitcycle.precision import FLOAT_BITS
from bitcycle.schedules import Anneal, Cycle, Delay, Ramp, Schedule, Stages, Static, Triangle
from bitcycle.schedules.checks import check_range, check_total

CYCLES = (2, 8, 32)  # 32: CPT; 8, and 2 for a short fine-tune: Better Schedules (2024)
RAMPS = (0.25, 0.5, 0.75)  # 0.5: CPT, Fig. 1
SWITCHES = (0.25, 0.5, 0.75, 0.9)  # 0.5: CPT, Table 1
STARTS = (0.375, 0.5, 0.625, 0.75)  # CPT, Table 7: epochs 60, 80, 100, 120 of 160


def list_candidates(
    low: int,
    high: int,
    *,
    total_steps: int,
    cycles: Sequence[int] | None = None,
    tops: Sequence[int] = (),
) -> list[Schedule]:
    """Static bits; and from every bit-width of low, ..., high - 1 to high: the ten named schedules,
    CPT's triangle and annealing, ramps, two stages, and CPT's cycle starting late.

    cycles: how often the cycling ones cycle; by default those of `CYCLES` that the run can hold.
    tops: upper bounds to consider besides `high`.

    >>> [str(one) for one in list_candidates(3, 4, total_steps=100, cycles=[8])][:5]
    ['3', 'CR:3-4:8', 'CT:3-4:8', 'ER:3-4:8', 'ET-H:3-4:8']
    """
    check_range(low, high)
    if low == high:
        raise ValueError(f"low and high are both {low}: nothing to schedule between; lower low")
    if low >= FLOAT_BITS:
        raise ValueError(f"low ({low}) is float32, as all bits from {FLOAT_BITS} on; lower it")
    total = check_total(total_steps)
    numbers = _check_cycles(cycles, total)
    for top in tops:
        if top not in range(low + 1, high + 1):
            raise ValueError(f"tops must lie above low ({low}) and up to high ({high}), got {top}")
    found: list[Schedule] = [Static(bits) for bits in range(low, min(high, FLOAT_BITS))]
    for top in sorted({high, *tops}, reverse=True):
        for bottom in range(low, min(top, FLOAT_BITS)):
            found += [one for one in _between(bottom, top, numbers) if _fits(one, total)]
    return found


def _between(low: int, high: int, cycles: Sequence[int]) -> Iterator[Schedule]:
    for n in cycles:
        for _, example in sorted(Cycle.named().items()):
            yield Cycle(low, high, n, example.profile, example.form, example.reflect)
        yield Anneal(low, high, n)
        yield Triangle(low, high, n)
        for start in STARTS:
            yield Delay(Cycle(low, high, n), start=start)
    for until in RAMPS:
        yield Ramp(low, high, until=until)
    for end in SWITCHES:
        yield Stages(((low, end), (high, 1.0)))


def _fits(schedule: Schedule, total_steps: int) -> bool:
    """Whether what a late start leaves of the run holds all its cycles."""
    try:
        schedule.check_span(total_steps)
    except ValueError:
        return False
    return True


def _check_cycles(cycles: Sequence[int] | None, total_steps: int) -> list[int]:
    if cycles is None:
        return [n for n in CYCLES if n <= total_steps]
    if not cycles:
        raise ValueError("cycles is empty: give at least one number, such as 8")
    for n in cycles:
        Cycle(3, 8, n).check_span(total_steps)  # a whole number that the run can hold
    return sorted(set(cycles))
