"""The bits of a method over its steps: from its schedules, or from its log where those adapt.

Also from its log while only the data can tell how many steps the epochs of a run will be.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from bitcycle.precision import PARENTS, ROLES
from bitcycle.report.page.numbers import thin
from bitcycle.report.page.recorded import RecordedMethod
from bitcycle.schedules import Bits, Schedule, parse_schedule

Segment = tuple[int, int, Bits]  # first step, end, bits
MOST_SEGMENTS = 1000


def schedules_of(method: RecordedMethod) -> dict[str, list[str]]:
    """Schedule text -> the roles that have it, such as "act", or "act of layer1.*"."""
    precision = method.result.method.config.precision
    given: dict[str, Any] = dict(precision.given(auto=method.found_low))
    found: dict[str, list[str]] = {}
    for role in ROLES:
        text = given.get(role, given.get(PARENTS[role], "fp32"))
        for pattern, inner in (text if isinstance(text, dict) else {"": text}).items():
            name = f"{role} of {pattern}" if pattern else role
            found.setdefault(str("fp32" if inner is None else inner), []).append(name)
    return found


def segments_of(text: str, method: RecordedMethod, role: str) -> list[Segment]:
    """The bits that a schedule gave to a role over the run; empty where nobody knows."""
    steps = method.num_steps
    schedule = _parse(text)
    if schedule is None or steps < 1:
        return []
    if schedule.is_adaptive or not method.is_length_known:
        return logged_segments(method, role)
    return compress(schedule.values(steps))


def is_adaptive(text: str) -> bool:
    """Whether a schedule follows the training, so that each run has bits of its own."""
    schedule = _parse(text)
    return schedule is not None and schedule.is_adaptive


def weight_segments(method: RecordedMethod) -> list[Segment]:
    """The bits of the weights; as logged (the most) where layers differ."""
    for text, roles in schedules_of(method).items():
        if "weight" in roles:
            return segments_of(text, method, "weight")
    return logged_segments(method, "weight")


def logged_segments(method: RecordedMethod, role: str) -> list[Segment]:
    """What the first run's log says; between two lines nothing is known, so the last holds."""
    for run in method.begun:
        lines = [line for line in run.metrics if isinstance(line.get("bits"), dict)]
        if not lines:
            continue
        segments: list[Segment] = []
        start = 0
        for line in lines:
            segments.append((start, int(line["step"]), _most(line["bits"].get(role))))
            start = int(line["step"])
        return thin(_merge(segments), MOST_SEGMENTS)
    return []


def compress(values: Iterable[Bits]) -> list[Segment]:
    """Equal neighbours as one segment.

    >>> compress([3, 3, 4])
    [(0, 2, 3), (2, 3, 4)]
    """
    segments: list[Segment] = []
    start = 0
    for bits, run in groupby(values):
        end = start + sum(1 for _ in run)
        segments.append((start, end, bits))
        start = end
    return thin(segments, MOST_SEGMENTS)


def _merge(segments: list[Segment]) -> list[Segment]:
    merged = []
    for bits, run in groupby(segments, key=lambda segment: segment[2]):
        together = list(run)
        merged.append((together[0][0], together[-1][1], bits))
    return merged


def _most(bits: Any) -> Bits:
    """Of a log line: a number, None, or the distinct ones of all layers (32 is float32)."""
    if isinstance(bits, list):
        most = max((b for b in bits if isinstance(b, int)), default=32)
        return None if most >= 32 else most
    return bits if isinstance(bits, int) else None


def _parse(text: str) -> Schedule | None:
    try:
        return parse_schedule(text)
    except ValueError:  # `auto` that no range test has filled yet
        return None
