"""What the folders of runs recorded, as the page needs it; what is missing is just not there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bitcycle.study.results import MethodResult, RunState, StudyResult
from bitcycle.train.directory import RunDirectory


@dataclass(frozen=True)
class Recorded:
    """One run; files are read once, when asked for."""

    state: RunState

    @property
    def seed(self) -> int:
        """The run's."""
        return self.state.run.seed

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that are whole."""
        lines = RunDirectory(self.state.directory).read_metrics()
        return [
            line for line in lines if isinstance(line, dict) and isinstance(line.get("step"), int)
        ]

    @cached_property
    def environment(self) -> dict[str, Any]:
        """env.json; empty without one."""
        return read_object(self.state.directory / "env.json") or {}

    @property
    def num_steps(self) -> int:
        """Of the whole run where that is known, otherwise those that were logged."""
        if self.state.result is not None:
            return self.state.result.steps
        planned = self.state.run.config.steps
        return planned or max((int(line["step"]) for line in self.metrics), default=0)


@dataclass(frozen=True)
class RecordedMethod:
    """One method with its runs. title: its name, with the group if there are several."""

    result: MethodResult
    runs: tuple[Recorded, ...]
    title: str

    @property
    def label(self) -> str:
        """The method's."""
        return self.result.method.label

    @property
    def key(self) -> str:
        """Unique in the study."""
        return self.result.method.key

    @property
    def begun(self) -> tuple[Recorded, ...]:
        """The runs with a folder."""
        return tuple(run for run in self.runs if (run.state.directory / "config.yaml").exists())

    @property
    def num_steps(self) -> int:
        """Of its longest run; what is planned when none has begun."""
        return max((run.num_steps for run in self.runs), default=0)

    @property
    def is_length_known(self) -> bool:
        """Whether `num_steps` is that of a whole run, not of the log of an unfinished one."""
        return bool(self.result.results) or self.result.method.config.steps is not None

    @property
    def found_low(self) -> int | None:
        """What `auto` in its forward schedule stood for in its first run that is done."""
        for result in self.result.results.values():
            if result.range_test is not None:
                return int(result.range_test["test"]["low"])
        return None


def record(result: StudyResult) -> list[RecordedMethod]:
    """The methods with what their folders hold."""
    has_groups = len(result.study.groups) > 1
    return [
        RecordedMethod(
            method,
            tuple(Recorded(run) for run in method.runs),
            title=method.method.key if has_groups else method.method.label,
        )
        for method in result.methods
    ]


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None when there is no such file or nothing of the kind in it."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stored if isinstance(stored, dict) else None
