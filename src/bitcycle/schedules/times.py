"""Points of a run: a step count (int) or a fraction of the run (float).

A time is an end point: what ends at 100 holds for steps 0 to 99. A fraction f of a run of T steps
is the nearest step to f * T, ties to even. So 0.5 is half of the run, 1.0 its end, and 1 the end
of its first step.
"""

from __future__ import annotations

import math

from bitcycle.schedules.checks import rint

Time = int | float


def check_time(time: object, what: str) -> Time:
    """The time itself if it is an int >= 0 or a float from 0.0 to 1.0; otherwise a ValueError."""
    if isinstance(time, int) and not isinstance(time, bool) and time >= 0:
        return time
    if isinstance(time, float) and math.isfinite(time) and 0.0 <= time <= 1.0:
        return time
    raise ValueError(
        f"{what} must be a step count (a whole number >= 0) or a fraction of the run "
        f"(a float from 0.0 to 1.0), got {time!r}"
    )


def to_step(time: Time, total_steps: int, what: str) -> int:
    """The step a time stands for in a run of this length.

    >>> to_step(0.25, 64_000, "start"), to_step(100, 64_000, "start"), to_step(0.5, 5, "start")
    (16000, 100, 2)
    """
    if isinstance(time, float):
        return rint(time * total_steps)
    if time > total_steps:
        raise ValueError(
            f"{what} {time} lies beyond the {total_steps} steps it has; "
            f"give a fraction (a float up to 1.0) or more steps"
        )
    return time


def check_ends(ends: tuple[Time, ...], what: str) -> None:
    """Raises unless the end points grow and the last is 1.0, the end of the run."""
    if not ends:
        raise ValueError(f"{what} needs at least one part")
    for number, end in enumerate(ends, 1):
        check_time(end, f"end point {number} of {what}")
    if not isinstance(ends[-1], float) or ends[-1] != 1.0:
        raise ValueError(
            f"the last end point of {what} must be 1.0, the end of the run, got {ends[-1]!r}"
            + (" (an int is a step count)" if isinstance(ends[-1], int) else "")
        )
    for kind in (int, float):  # how an int and a float compare depends on the run: see to_spans
        alike = [end for end in ends if isinstance(end, kind)]
        previous: Time = 0
        for end in alike:
            if end <= previous:
                raise ValueError(
                    f"end points of {what} must grow from above 0, got {end!r} after {previous!r}; "
                    "each is counted from the start of the run, not from the previous one"
                )
            previous = end


def to_spans(ends: tuple[Time, ...], total_steps: int, what: str) -> list[tuple[int, int]]:
    """(first step, step after the last) of every part; a short run can leave a part no steps.

    >>> to_spans((0.2, 50, 1.0), 100, "a sequence")
    [(0, 20), (20, 50), (50, 100)]
    """
    spans = []
    start = 0
    for number, end in enumerate(ends, 1):
        stop = to_step(end, total_steps, f"end point {number} of {what},")
        if stop < start:
            raise ValueError(
                f"over {total_steps} steps, end point {number} of {what} ({end!r}) is step {stop}, "
                f"before the previous one (step {start}); use only fractions or only step counts"
            )
        spans.append((start, stop))
        start = stop
    return spans


def time_text(time: Time) -> str:
    """A time in words: 'step 100' or '25% of the run'."""
    return f"{100 * time:g}% of the run" if isinstance(time, float) else f"step {time}"
