"""Data that cannot be there, found before a study starts a process for each of its runs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bitcycle.data import DATASETS, load
from bitcycle.study.engines import Engine
from bitcycle.study.engines.base import Ending, is_held, run_folder
from bitcycle.study.progress import Watcher
from bitcycle.study.results import RunState, StudyResult, add_failure, read_study, remove_failures
from bitcycle.study.study import Study, StudyRun
from bitcycle.train.config import RunConfig
from bitcycle.train.signals import Interrupted, StopRequest


def check_data(configs: Iterable[RunConfig]) -> None:
    """Raise what the first run would: no root given, or no folder there. Reads no data."""
    for name, root in dict.fromkeys((c.data.name, c.data.root) for c in configs):
        if name not in DATASETS or not DATASETS[name].needs_root:
            continue
        if root is None or not Path(root).expanduser().is_dir():
            load(name, root)


TICK = 0.5  # seconds between looks at the runs
RETRY = 5.0  # seconds until a run that another process has is looked at again


@dataclass
class Queue:
    """Runs to do, in order; one that another process has waits at the end."""

    runs: list[StudyRun]
    not_before: dict[str, float] = field(default_factory=dict)

    def take(self) -> StudyRun | None:
        """The next that may start now."""
        now = time.monotonic()
        for run in self.runs:
            if self.not_before.get(run.config.run_name, 0.0) <= now:
                self.runs.remove(run)
                return run
        return None

    def put_back(self, run: StudyRun) -> None:
        """For later."""
        self.not_before[run.config.run_name] = time.monotonic() + RETRY
        self.runs.append(run)


def run_study(
    study: Study,
    output: str | Path,
    *,
    engine: Engine,
    retry_failed: bool = False,
    watcher: Watcher | None = None,
) -> StudyResult:
    """Train what has no result below `output`; what failed before only when asked.

    A signal lets the running ones write a checkpoint and raises `Interrupted`.
    """
    before = read_study(study, output)
    todo = to_do(before, retry_failed=retry_failed)
    queue = Queue([state.run for state in todo])
    watcher = watcher or Watcher()
    with engine, StopRequest().listening() as stop_request, watcher:
        watcher.begin(before, [state.run for state in todo], num_jobs=engine.num_jobs)
        _work_off(queue, engine, watcher, stop_request)
    if stop_request.signum is not None:
        raise Interrupted(stop_request.signum, _how_to_go_on(read_study(study, output)))
    return read_study(study, output)


def to_do(result: StudyResult, *, retry_failed: bool) -> list[RunState]:
    """The runs to train, seed by seed; one that two methods share is there once.

    One whose result is damaged is not there: only its owner may delete that file.
    """
    wanted = ("missing", "started", *(("failed",) if retry_failed else ()))
    states = {state.directory: state for row in result.methods for state in row.runs}
    folders = [run_folder(run.config) for run in result.study.runs(str(result.output))]
    in_order = dict.fromkeys(folder.path for folder in folders if not folder.is_finished)
    return [states[path] for path in in_order if states[path].state in wanted]


def _work_off(queue: Queue, engine: Engine, watcher: Watcher, stop_request: StopRequest) -> None:
    running: dict[str, StudyRun] = {}
    has_asked = False
    while running or (queue.runs and stop_request.signum is None):
        if stop_request.signum is not None and not has_asked:
            has_asked = True
            watcher.say("stopping: every run finishes its step and writes a checkpoint ...")
            engine.stop()
        if stop_request.signum is None:
            _start_some(queue, engine, running, watcher)
        for ending in engine.wait(TICK):
            run = running.pop(ending.name)
            _note(run, ending, queue, watcher)
        watcher.look(list(running.values()))


def _start_some(
    queue: Queue, engine: Engine, running: dict[str, StudyRun], watcher: Watcher
) -> None:
    while not engine.is_full and (run := queue.take()) is not None:
        directory = run_folder(run.config)
        if directory.is_finished:  # by another study, since we looked
            _note(run, Ending(name=run.config.run_name, state="done"), queue, watcher)
        elif is_held(directory):
            watcher.busy(run)
            queue.put_back(run)
        else:
            remove_failures(run.config.output, [run.config.run_name])
            running[run.config.run_name] = run
            engine.start(run.config)


def _note(run: StudyRun, ending: Ending, queue: Queue, watcher: Watcher) -> None:
    name, output = run.config.run_name, run.config.output
    if run_folder(run.config).is_finished:
        remove_failures(output, [name])
        watcher.done(run)
    elif ending.state == "busy":
        watcher.busy(run)
        queue.put_back(run)
    elif ending.state == "stopped":
        watcher.stopped(run, ending.message)
    else:
        message = ending.message or "ended without a result"
        add_failure(output, name, message)
        watcher.failed(run, message)


def _how_to_go_on(result: StudyResult) -> str:
    done = {s.directory for row in result.methods for s in row.runs if s.state == "done"}
    every = {s.directory for row in result.methods for s in row.runs}
    return (
        f"stopped with {len(done)} of {len(every)} runs done; what was running has its checkpoint. "
        "The same command goes on from there"
    )
