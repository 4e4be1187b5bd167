"""The Ray engine: one task per run, on a cluster or on a Ray that is started for the study.

A task writes to the run's folder as a local process does. On a cluster the output folder and the
data, and files given with --import, must be on a filesystem that all machines share.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bitcycle.extras import require
from bitcycle_lab.plugins import imported_plugins
from bitcycle_lab.study.engines.base import Engine, RunOutcome, log_file, train_run
from bitcycle_lab.train.config import RunConfig

STORE = 100 * 2**20  # bytes of Ray's object store, if we start it: a task returns a few words


class RayEngine(Engine):
    """A task per run, which reserves as many processors as the run has threads."""

    def __init__(
        self, *, num_jobs: int | None = None, threads: int = 1, address: str | None = None
    ) -> None:
        self._ray = require("ray", extra="cluster", purpose="studies on a cluster")
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            self._connect(address)
        try:
            resources = self._ray.cluster_resources()
            self._has_gpus = resources.get("GPU", 0) >= 1
            self.num_jobs = num_jobs or self._max_jobs(resources, threads)
        except BaseException:
            self.kill()
            raise
        self._tasks: dict[Any, RunConfig] = {}

    def _connect(self, address: str | None) -> None:
        here: dict[str, Any] = {}
        if address is None:
            here = {"address": "local", "include_dashboard": False, "object_store_memory": STORE}
        try:
            options: dict[str, Any] = {"address": address, **here}
            self._ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except (ConnectionError, ValueError) as error:
            raise ConnectionError(
                f"there is no Ray cluster at {address}: {error}; `ray start --head` starts one"
            ) from None

    def _max_jobs(self, resources: dict[str, float], threads: int) -> int:
        processors = int(resources.get("CPU", 0))
        if processors < threads:
            raise ValueError(
                f"threads ({threads}) must be at most {processors}, the processors of the Ray "
                "cluster"
            )
        by_processors = processors // threads
        return min(by_processors, int(resources["GPU"])) if self._has_gpus else by_processors

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the runs that have been started and have not ended."""
        return tuple(config.run_name for config in self._tasks.values())

    def start(self, config: RunConfig) -> None:
        """Start a task in a process of its own, which Ray never retries."""
        task = self._ray.remote(max_retries=0, max_calls=1)(train_task).options(
            num_cpus=config.threads or 1,
            num_gpus=1 if self._has_gpus else 0,
            name=config.run_name,
        )
        self._tasks[task.remote(config, str(Path.cwd()), imported_plugins())] = config

    def wait(self, seconds: float) -> list[RunOutcome]:
        """The outcomes of the tasks that have ended."""
        if not self._tasks:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=seconds)
        if ready:
            number = len(self._tasks)
            ready, _ = self._ray.wait(list(self._tasks), num_returns=number, timeout=0)
        return [self._outcome(task, self._tasks.pop(task)) for task in ready]

    def _outcome(self, task: Any, config: RunConfig) -> RunOutcome:
        name, errors = config.run_name, self._ray.exceptions
        try:
            return RunOutcome(**self._ray.get(task))
        except errors.TaskCancelledError:
            return RunOutcome(name=name, state="stopped", message="stopped")
        except errors.RayError as error:  # a process or a machine that died
            text = " ".join(str(error).split())[:500]
            message = f"{type(error).__name__}: {text} (log: {log_file(config)})"
            return RunOutcome(name=name, state="failed", message=message)

    def stop(self) -> None:
        """Cancel all tasks as Ctrl-C would: a training run writes a checkpoint first."""
        for task in self._tasks:
            self._ray.cancel(task, force=False)

    def kill(self) -> None:
        """Cancel all tasks at once, and shut Ray down if the engine started it."""
        for task in getattr(self, "_tasks", {}):
            self._ray.cancel(task, force=True)
        self._tasks = {}
        if self._is_ours:
            self._ray.shutdown()


def train_task(config: RunConfig, folder: str, plugins: tuple[str, ...] = ()) -> dict[str, str]:
    """The body of a task. folder: of the study's process, where relative paths begin."""
    try:
        os.chdir(folder)
    except OSError as error:
        message = f"{error} on {platform.node()}: all machines must share this folder"
        return asdict(RunOutcome(name=config.run_name, state="failed", message=message))
    return asdict(train_run(config, plugins))
