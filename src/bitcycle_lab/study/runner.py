"""Run a study: train the runs that have no result, several at a time, with an engine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bitcycle_lab.data import DATASETS, load
from bitcycle_lab.study.engines import Engine
from bitcycle_lab.study.engines.base import RunOutcome
from bitcycle_lab.study.progress import Watcher
from bitcycle_lab.study.results import (
    RunStatus,
    StudyResult,
    add_failure,
    distinct_runs,
    read_study,
    remove_failures,
)
from bitcycle_lab.study.study import Study, StudyRun, run_directory
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.signals import Interrupted, StopRequest

POLL_SECONDS = 0.5  # between two checks of the runs
RETRY_SECONDS = 5.0  # until a run that another process trains is tried again


def run_study(
    study: Study,
    output: str | Path,
    *,
    engine: Engine,
    retry_failed: bool = False,
    watcher: Watcher | None = None,
) -> StudyResult:
    """Train the runs that have no result below `output`, and return all results.

    An interrupted run resumes from its last checkpoint. Runs that failed before are tried again
    only with `retry_failed`. On a signal the running ones write a checkpoint, and `Interrupted` is
    raised.
    """
    before = read_study(study, output)
    todo = runs_to_train(before, retry_failed=retry_failed)
    watcher = watcher or Watcher()
    with engine, StopRequest().listening() as stop_request, watcher:
        watcher.begin(before, todo, num_jobs=engine.num_jobs)
        _train_all(Queue(list(todo)), engine, watcher, stop_request)
    after = read_study(study, output)
    if stop_request.signum is not None:
        runs = distinct_runs(after)
        raise Interrupted(
            stop_request.signum,
            f"stopped with {sum(run.state == 'done' for run in runs)} of {len(runs)} runs done; "
            "the running ones wrote a checkpoint. The same command resumes from there",
        )
    return after


def runs_to_train(result: StudyResult, *, retry_failed: bool) -> list[RunStatus]:
    """The runs to train, seed by seed; a run that two methods share is listed once.

    A run with a damaged result is left out: only its owner may delete that file.
    """
    states = ("missing", "started", *(("failed",) if retry_failed else ()))
    by_path = {run.directory: run for run in distinct_runs(result)}
    folders = [run_directory(run.config) for run in result.study.runs(str(result.output))]
    in_order = dict.fromkeys(folder.path for folder in folders if not folder.is_finished)
    return [by_path[path] for path in in_order if by_path[path].state in states]


def check_data(configs: Iterable[RunConfig]) -> None:
    """Raise the error of the first run whose dataset has no root or no folder. Reads no data.

    Called before a study starts a process for each of its runs.
    """
    for name, root in dict.fromkeys((c.data.name, c.data.root) for c in configs):
        if name not in DATASETS or not DATASETS[name].needs_root:
            continue
        if root is None or not Path(root).expanduser().is_dir():
            load(name, root)


@dataclass
class Queue:
    """Runs to train, in order. A run that another process trains waits at the end."""

    runs: list[StudyRun]
    not_before: dict[str, float] = field(default_factory=dict)

    def take(self) -> StudyRun | None:
        """Remove and return the next run that may start now."""
        now = time.monotonic()
        for run in self.runs:
            if self.not_before.get(run.config.run_name, 0.0) <= now:
                self.runs.remove(run)
                return run
        return None

    def put_back(self, run: StudyRun) -> None:
        """Add a run again, to be tried after `RETRY_SECONDS`."""
        self.not_before[run.config.run_name] = time.monotonic() + RETRY_SECONDS
        self.runs.append(run)


def _train_all(queue: Queue, engine: Engine, watcher: Watcher, stop_request: StopRequest) -> None:
    running: dict[str, StudyRun] = {}
    is_stopping = False
    while running or (queue.runs and stop_request.signum is None):
        if stop_request.signum is not None and not is_stopping:
            is_stopping = True
            watcher.say("stopping: every run finishes its step and writes a checkpoint ...")
            engine.stop()
        if stop_request.signum is None:
            _start_runs(queue, engine, running, watcher)
        for outcome in engine.wait(POLL_SECONDS):
            _record(running.pop(outcome.name), outcome, queue, watcher)
        watcher.update(list(running.values()))


def _start_runs(
    queue: Queue, engine: Engine, running: dict[str, StudyRun], watcher: Watcher
) -> None:
    while not engine.is_full and (run := queue.take()) is not None:
        directory = run_directory(run.config)
        if directory.is_finished:  # another study has trained it meanwhile
            _record(run, RunOutcome(name=run.config.run_name, state="done"), queue, watcher)
        elif directory.is_locked:
            watcher.busy(run)
            queue.put_back(run)
        else:
            remove_failures(run.config.output, [run.config.run_name])
            running[run.config.run_name] = run
            engine.start(run.config)


def _record(run: StudyRun, outcome: RunOutcome, queue: Queue, watcher: Watcher) -> None:
    """Store and show how a run ended. The run's folder decides, not the process's word."""
    name, output = run.config.run_name, run.config.output
    if run_directory(run.config).is_finished:
        remove_failures(output, [name])
        watcher.done(run)
    elif outcome.state == "busy":
        watcher.busy(run)
        queue.put_back(run)
    elif outcome.state == "stopped":
        watcher.stopped(run, outcome.message)
    else:
        message = outcome.message or "ended without a result"
        add_failure(output, name, message)
        watcher.failed(run, message)
