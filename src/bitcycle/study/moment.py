"""Where a running run is, read from the last line of its metrics, and how long the rest takes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitcycle.study.attempt import run_folder
from bitcycle.study.base import StudyRun
from bitcycle.tasks import TASKS

TAIL = 16_384  # bytes: many lines


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One moment of a run; step 0 without the rest until its first line is written."""

    step: int = 0
    total_steps: int | None = None  # None: only the data can tell
    bits: str = "-"
    metric: str = ""
    value: float | None = None
    seconds: float = 0.0

    @property
    def pace(self) -> float | None:
        """Seconds a step."""
        return self.seconds / self.step if self.step and self.seconds else None

    def text(self) -> str:
        """Step, bits and metric in a few words."""
        total = "" if self.total_steps is None else f"/{self.total_steps}"
        value = "" if self.value is None else f"  {self.metric} {self.value:.2f}"
        return f"step {self.step}{total}  bits {self.bits}{value}"


def read_moment(run: StudyRun) -> Moment:
    """Of a run that may be writing at this moment, or have no folder yet."""
    metric = TASKS[run.config.task].metric
    line = _last_line(run_folder(run.config).metrics_file)
    if line is None:
        return Moment(total_steps=run.config.steps, metric=metric)
    return Moment(
        step=line["step"],
        total_steps=run.config.steps,
        bits=bits_text(line.get("bits", {})),
        metric=metric,
        value=line.get(metric),
        seconds=line.get("seconds", 0.0),
    )


def _last_line(path: Path) -> dict[str, Any] | None:
    """The last whole line about training steps."""
    try:
        with path.open("rb") as handle:
            size = handle.seek(0, 2)
            handle.seek(max(0, size - TAIL))
            lines = handle.read().split(b"\n")
    except FileNotFoundError:
        return None
    for text in reversed(lines):
        try:
            line = json.loads(text)
        except ValueError:  # half a line, at either end
            continue
        if isinstance(line, dict) and line.get("kind") == "train":
            return line
    return None


def bits_text(bits: Mapping[str, Any]) -> str:
    """Forward / backward bits as the papers write them.

    >>> bits_text({"weight": 3, "act": 3, "error": 8, "grad": 8}), bits_text({"weight": None})
    ('3/8', 'fp32')
    >>> bits_text({"weight": [3, 8], "act": [3, 8], "error": 8, "grad": None})
    '3-8/8'
    """
    forward, backward = _bits(bits.get("weight")), _bits(bits.get("error"))
    return forward if forward == backward == "fp32" else f"{forward}/{backward}"


def _bits(value: Any) -> str:
    if isinstance(value, list):
        return f"{_bits(min(value))}-{_bits(max(value))}"
    return "fp32" if value is None or value == 32 else str(value)


class Paces:
    """Seconds a step of each configuration, as far as runs have shown it."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[int, float]] = {}

    def note(self, run: StudyRun, seconds_per_step: float | None) -> None:
        """What a run takes; the last word about it counts."""
        if seconds_per_step is not None:
            self._seen.setdefault(run.config.name, {})[run.seed] = seconds_per_step

    def of(self, run: StudyRun) -> float | None:
        """The mean over seeds of its configuration; over all configurations if it has none yet."""
        own = self._seen.get(run.config.name)
        means = [_mean(seeds.values()) for seeds in ([own] if own else self._seen.values())]
        return _mean(means) if means else None


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def seconds_left(
    waiting: Iterable[StudyRun],
    running: Iterable[tuple[StudyRun, Moment]],
    paces: Paces,
    num_jobs: int,
) -> float | None:
    """Until all are done, at the paces seen; None while there is no pace or length to go by."""
    unstarted = ((run, Moment(total_steps=run.config.steps)) for run in waiting)
    left: list[float] = []
    for run, moment in (*running, *unstarted):
        pace = moment.pace or paces.of(run)
        if pace is None or moment.total_steps is None:
            return None
        left.append(pace * (moment.total_steps - moment.step))
    if not left:
        return 0.0
    return max(sum(left) / num_jobs, max(left))
