"""Landscapes of several runs on the same directions, with an estimate of the time first."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bitcycle.landscape.result import FILE_NAME, Grid, Landscape, Landscapes
from bitcycle.landscape.run import PreparedSurface, RunSurface, compute, num_missing, prepare
from bitcycle.train.signals import Interrupted, StopRequest

MIN_PARALLEL_SECONDS = 20.0  # below this, starting processes takes longer than it saves


@dataclass(frozen=True)
class PendingLandscape:
    """One run, the file of its landscape, and the number of points that are not computed yet."""

    prepared: PreparedSurface
    target: Path
    num_missing: int


@dataclass(frozen=True)
class PendingLandscapes:
    """The landscapes of all runs, before they are computed: size, time, and `run`."""

    items: tuple[PendingLandscape, ...]
    jobs: int

    @property
    def num_points(self) -> int:
        """Points of all landscapes."""
        return sum(len(item.prepared.grid.points) for item in self.items)

    @property
    def num_missing(self) -> int:
        """Points that are not computed yet."""
        return sum(item.num_missing for item in self.items)

    @property
    def seconds(self) -> float:
        """Estimated time of the missing points."""
        return _seconds(self.items, self.jobs)

    def run(self, advance: Callable[[int], None] = lambda done: None) -> Landscapes:
        """Compute the missing points, run by run. A signal stops after a point; points are kept."""
        found: list[Landscape] = []
        with StopRequest().listening() as stop_request:
            before = 0

            def count(done: int) -> None:
                advance(before + done)
                if stop_request.signum is not None:
                    raise Interrupted(
                        stop_request.signum,
                        f"stopped; {before + done} of {self.num_points} points are kept, and the "
                        "same command computes the rest",
                    )

            for item in self.items:
                found.append(compute(item.prepared, item.target, jobs=self.jobs, advance=count))
                before += len(item.prepared.grid.points)
                count(0)
        return Landscapes(tuple(found))


def compare(
    runs: Sequence[RunSurface],
    grid: Grid,
    *,
    output: Path | None = None,
    jobs: int | None = None,
    replaces: bool = False,
) -> PendingLandscapes:
    """Load every run and evaluate its centre. Writes nothing.

    output: the folder for the numbers; None: landscape.json in the folder of each run. jobs: the
    number of processes; None: one per processor if the time is worth it. replaces: whether a file
    with other settings may be overwritten.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs ({jobs}) must be at least 1")
    folders = [str(Path(run.directory).resolve()) for run in runs]
    if len(set(folders)) < len(folders):
        raise ValueError(f"a run is given twice among {', '.join(folders)}; give each once")
    prepared_runs = [prepare(run, grid) for run in runs]
    labels = [each.label for each in prepared_runs]
    if len(set(labels)) < len(labels):
        prepared_runs = [replace(each, label=each.what.directory) for each in prepared_runs]
    items = []
    for each in prepared_runs:
        target = _target(each, output)
        if not replaces:
            _check_free(each, target)
        items.append(PendingLandscape(each, target, num_missing(each, target)))
    return PendingLandscapes(tuple(items), choose_jobs(items) if jobs is None else jobs)


def _target(prepared: PreparedSurface, output: Path | None) -> Path:
    if output is None:
        return Path(prepared.what.directory) / FILE_NAME
    return output / f"{prepared.label.strip('/').replace('/', '-')}.landscape.json"


def _check_free(prepared: PreparedSurface, target: Path) -> None:
    """Raise if the file holds a landscape with other settings, which may have taken hours."""
    if not target.exists():
        return
    origin = Landscape.read(target).origin
    names = sorted({*origin, *prepared.origin})
    changed = [
        f"{name} {origin.get(name)}, now {prepared.origin.get(name)}"
        for name in names
        if origin.get(name) != prepared.origin.get(name)
    ]
    if changed:
        raise ValueError(
            f"{target} holds another surface ({'; '.join(changed)}); --replace overwrites it, "
            "--output FOLDER writes elsewhere"
        )


def _seconds(items: Sequence[PendingLandscape], jobs: int) -> float:
    return sum(p.prepared.seconds(p.num_missing, jobs) for p in items if p.num_missing)


def choose_jobs(items: Sequence[PendingLandscape]) -> int:
    """One process per processor, divided by the threads of a run; one if the time is short."""
    if torch.cuda.is_available() or _seconds(items, 1) < MIN_PARALLEL_SECONDS:
        return 1
    threads = max(int(item.prepared.origin["threads"]) for item in items)
    return max(1, len(os.sched_getaffinity(0)) // threads)
