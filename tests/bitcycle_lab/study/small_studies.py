"""Studies of a second's training, and an engine that needs no other process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bitcycle_lab.study.engines.base import Engine, RunOutcome, train_run
from bitcycle_lab.study.study import Method, Study
from bitcycle_lab.train import run
from bitcycle_lab.train.config import OptimizerConfig, PrecisionConfig, RunConfig, SwaConfig
from tests.bitcycle_lab.train.small import Killed, kill_before_step, small

NOWHERE = Path("nowhere")  # a study gives its runs their folder


def tiny(forward: int | str = 8, **changes: Any) -> RunConfig:
    """Four steps of the digits MLP."""
    precision = PrecisionConfig(forward=forward, backward=8)
    return small(NOWHERE, **{"steps": 4, "precision": precision, **changes})


def tiny_study(*methods: Method, **changes: Any) -> Study:
    """Static 8 against static 4 bits, one seed, unless told otherwise."""
    usual = (Method(label="8", config=tiny(8)), Method(label="4", config=tiny(4)))
    settings: dict[str, Any] = {"name": "tiny", "description": "", "seeds": (0,), "baseline": "8"}
    return Study(**{**settings, "methods": methods or usual, **changes})


def crashing() -> Method:
    """One that fails before its folder is made."""
    return Method(label="crashing", config=tiny(6, swa=SwaConfig(start=100)))


def diverging() -> Method:
    """One that fails while it trains."""
    return Method(label="diverging", config=tiny("fp32", optimizer=OptimizerConfig(lr=1e30)))


def run_until(config: RunConfig, step: int) -> None:
    """A run that is killed when it is about to take this 0-based step."""
    with pytest.MonkeyPatch.context() as patch:
        kill_before_step(patch, step)
        with pytest.raises(Killed):
            run(config)


class Here(Engine):
    """Runs in this process, one at a time, when waited for."""

    num_jobs = 1

    def __init__(self) -> None:
        self.started: list[RunConfig] = []
        self._queue: list[RunConfig] = []
        self.was_asked_to_stop = self.was_killed = False

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(config.run_name for config in self._queue)

    def start(self, config: RunConfig) -> None:
        self.started.append(config)
        self._queue.append(config)

    def wait(self, seconds: float) -> list[RunOutcome]:
        return [train_run(self._queue.pop(0))] if self._queue else []

    def stop(self) -> None:
        self.was_asked_to_stop = True

    def kill(self) -> None:
        self.was_killed = True
