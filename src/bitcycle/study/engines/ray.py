"""Runs as tasks of a Ray cluster, or of a Ray that is started here for the study.

A task writes to the run's folder as a local process does, and only that counts: on a cluster the
output folder and the data must be on a filesystem that all machines share.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bitcycle.extras import require
from bitcycle.study.engines.base import Ending, Engine, attempt, log_file
from bitcycle.train.config import RunConfig

STORE = 100 * 2**20  # bytes of Ray's object store, where we start it: a task returns some words


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
            self.num_jobs = num_jobs or self._room(resources, threads)
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
                f"there is no Ray cluster at {address}: {error}; start one with `ray start --head`,"
                " or leave --address out for a Ray on this machine"
            ) from None

    def _room(self, resources: dict[str, float], threads: int) -> int:
        processors = int(resources.get("CPU", 0))
        if processors < threads:
            raise ValueError(
                f"a run has {threads} threads and the Ray cluster {processors} processors: no run "
                f"would ever start; give --threads {max(1, processors)} or fewer"
            )
        by_processors = processors // threads
        return min(by_processors, int(resources["GPU"])) if self._has_gpus else by_processors

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the runs that have been started and have not ended."""
        return tuple(config.run_name for config in self._tasks.values())

    def start(self, config: RunConfig) -> None:
        """A new task, in a process of its own, never repeated by Ray itself."""
        task = self._ray.remote(max_retries=0, max_calls=1)(_work).options(
            num_cpus=config.threads or 1,
            num_gpus=1 if self._has_gpus else 0,
            name=config.run_name,
        )
        self._tasks[task.remote(config, str(Path.cwd()))] = config

    def wait(self, seconds: float) -> list[Ending]:
        """The endings of tasks that are over."""
        if not self._tasks:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=seconds)
        if ready:
            number = len(self._tasks)
            ready, _ = self._ray.wait(list(self._tasks), num_returns=number, timeout=0)
        return [self._ending(task, self._tasks.pop(task)) for task in ready]

    def _ending(self, task: Any, config: RunConfig) -> Ending:
        name, errors = config.run_name, self._ray.exceptions
        try:
            return Ending(**self._ray.get(task))
        except errors.TaskCancelledError:
            return Ending(name=name, state="stopped", message="stopped")
        except errors.RayError as error:  # a process or a machine that died
            text = " ".join(str(error).split())[:500]
            message = f"{type(error).__name__}: {text} (log: {log_file(config)})"
            return Ending(name=name, state="failed", message=message)

    def stop(self) -> None:
        """One that trains writes a checkpoint first: Ray sends what Ctrl-C does."""
        for task in self._tasks:
            self._ray.cancel(task, force=False)

    def kill(self) -> None:
        """Nothing is left; a Ray that was there before stays."""
        for task in getattr(self, "_tasks", {}):
            self._ray.cancel(task, force=True)
        self._tasks = {}
        if self._is_ours:
            self._ray.shutdown()


def _work(config: RunConfig, folder: str) -> dict[str, str]:
    """What a task does: paths of the configuration begin in the folder of the study's process."""
    try:
        os.chdir(folder)
    except OSError as error:
        message = f"{error} on {platform.node()}: all machines must share this folder"
        return asdict(Ending(name=config.run_name, state="failed", message=message))
    return asdict(attempt(config))
