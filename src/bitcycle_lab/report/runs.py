"""The methods of a study with the logs of their runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from bitcycle.bits import PlainBits, order
from bitcycle.formats.catalogue import FORMATS
from bitcycle.precision import PARENTS
from bitcycle.schedules import Schedule, parse_schedule
from bitcycle.schedules.segments import Segment, find_segments
from bitcycle_lab.study.results import MethodResult, RunStatus, StudyResult
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class MethodLog(MethodResult):
    """A method, its runs and their logs. title: its label, with the group if there are several."""

    title: str

    @property
    def config(self) -> RunConfig:
        """The configuration of the method."""
        return self.method.config

    @property
    def started(self) -> tuple[RunStatus, ...]:
        """The runs with a folder."""
        return tuple(run for run in self.runs if RunDirectory(run.directory).exists)

    @property
    def num_steps(self) -> int:
        """Return the number of steps of the longest run."""
        return max((run.num_steps for run in self.runs), default=0)

    @property
    def found_low(self) -> int | None:
        """The lower bound that the range test of the first finished run put in for `auto`."""
        tests = [result.range_test for result in self.results.values()]
        return next((int(test["test"]["low"]) for test in tests if test is not None), None)

    def schedules(self) -> dict[str, list[str]]:
        """Schedule text -> the roles that follow it, such as "act" or "act of layer1.*"."""
        given: dict[str, Any] = dict(self.config.precision.schedule_texts(auto=self.found_low))
        found: dict[str, list[str]] = {}
        for role in self.config.precision.rounded_roles:
            text = given.get(role, given.get(PARENTS[role], "fp32"))
            for pattern, inner in (text if isinstance(text, dict) else {"": text}).items():
                name = f"{role} of {pattern}" if pattern else role
                found.setdefault(str("fp32" if inner is None else inner), []).append(name)
        return found

    def is_adaptive(self) -> bool:
        """Whether a schedule follows the training, so that every run has its own bits."""
        return any(s is not None and s.is_adaptive for s in map(_parse, self.schedules()))

    def bits(self, text: str, role: str) -> list[Segment]:
        """The bits that a schedule gave to a role; from the log if it adapts; empty if unknown.

        The log also serves unfinished runs that are configured by epochs: only the data know how
        many steps those are.
        """
        schedule = _parse(text)
        if schedule is None or self.num_steps < 1:
            return []
        is_length_known = self.config.steps is not None or bool(self.results)
        if schedule.is_adaptive or not is_length_known:
            return self.logged_bits(role)
        return find_segments(schedule, self.num_steps)

    def weight_bits(self) -> list[Segment]:
        """The bits of the weights; the most, as logged, where layers differ."""
        for text, roles in self.schedules().items():
            if "weight" in roles:
                return self.bits(text, "weight")
        return self.logged_bits("weight")

    def logged_bits(self, role: str) -> list[Segment]:
        """The bits in the log of the first run that has one; a line holds since the line before."""
        for run in self.started:
            lines = [line for line in run.metrics if isinstance(line.get("bits"), dict)]
            if not lines:
                continue
            starts = [0, *(line["step"] for line in lines)]
            bits = [_most_bits(line["bits"].get(role)) for line in lines]
            return [
                Segment(starts[places[0]], starts[places[-1] + 1], value)
                for value, equal in groupby(range(len(bits)), key=lambda i: bits[i])
                if (places := list(equal))
            ]
        return []


def _most_bits(bits: Any) -> PlainBits:
    """The bits of a log line: a number, a format, None, or those of all layers (32 is float32)."""
    if isinstance(bits, list):
        known = [_read_bits(each) for each in bits if isinstance(each, int | str)]
        most = max(known, key=order, default=None)
        return None if most is None or most == 32 else most
    return _read_bits(bits)


def _read_bits(bits: Any) -> PlainBits:
    """The bits of one entry; None for float32, and for a name that this version does not know."""
    if isinstance(bits, str):
        return FORMATS.get(bits)
    return bits if isinstance(bits, int) else None


def _parse(text: str) -> Schedule | None:
    try:
        return parse_schedule(text)
    except ValueError:  # `auto` before its range test
        return None


def method_logs(result: StudyResult) -> list[MethodLog]:
    """The methods of a study."""
    has_groups = len(result.study.groups) > 1
    return [
        MethodLog(
            method=each.method,
            runs=each.runs,
            title=each.method.key if has_groups else each.method.label,
        )
        for each in result.methods
    ]


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None without one."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stored if isinstance(stored, dict) else None
