"""The landscapes of several runs on the same directions, with an estimate before the work."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bitcycle.landscape.result import FILE_NAME, Grid, Landscape, Landscapes
from bitcycle.landscape.run import Prepared, RunSurface, compute, num_missing, prepare
from bitcycle.train.signals import Interrupted, StopRequest

WORTH_PROCESSES = 20.0  # seconds: for less, starting processes takes longer than it saves


@dataclass(frozen=True)
class Piece:
    """One run's surface, the file it goes to, and the points that are not computed yet."""

    prepared: Prepared
    target: Path
    num_missing: int


@dataclass(frozen=True)
class Comparison:
    """What is to be done for all runs, after each was loaded once and its centre evaluated."""

    pieces: tuple[Piece, ...]
    jobs: int

    @property
    def num_points(self) -> int:
        """Of all surfaces."""
        return sum(len(piece.prepared.grid.points) for piece in self.pieces)

    @property
    def num_missing(self) -> int:
        """Those that are not computed yet."""
        return sum(piece.num_missing for piece in self.pieces)

    @property
    def seconds(self) -> float:
        """About how long they take."""
        return _seconds(self.pieces, self.jobs)

    def run(self, advance: Callable[[int], None] = lambda done: None) -> Landscapes:
        """Compute what is missing, run by run; a signal stops it after a point, which is kept."""
        found: list[Landscape] = []
        with StopRequest().listening() as stop_request:
            before = 0

            def count(done: int) -> None:
                advance(before + done)
                if stop_request.signum is not None:
                    raise Interrupted(
                        stop_request.signum,
                        f"stopped; {before + done} of {self.num_points} points are kept, and the "
                        "same command goes on from there",
                    )

            for piece in self.pieces:
                found.append(compute(piece.prepared, piece.target, jobs=self.jobs, advance=count))
                before += len(piece.prepared.grid.points)
                count(0)
        return Landscapes(tuple(found))


def compare(
    runs: Sequence[RunSurface],
    grid: Grid,
    *,
    output: Path | None = None,
    jobs: int | None = None,
    replaces: bool = False,
) -> Comparison:
    """Load every run and evaluate its centre; nothing is written yet.

    output: a folder for the numbers; without one each run's own has its landscape.json. jobs: of
    processes; None: as many as there are processors, if that is worth it.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs ({jobs}) must be at least 1")
    folders = [str(Path(run.directory).resolve()) for run in runs]
    if len(set(folders)) < len(folders):
        raise ValueError(f"a run is given twice among {', '.join(folders)}; give each once")
    everything = [prepare(run, grid) for run in runs]
    labels = [each.label for each in everything]
    if len(set(labels)) < len(labels):
        everything = [replace(each, label=each.what.directory) for each in everything]
    pieces = []
    for each in everything:
        target = _target(each, output)
        if not replaces:
            _check_free(each, target)
        pieces.append(Piece(each, target, num_missing(each, target)))
    return Comparison(tuple(pieces), choose_jobs(pieces) if jobs is None else jobs)


def _target(prepared: Prepared, output: Path | None) -> Path:
    if output is None:
        return Path(prepared.what.directory) / FILE_NAME
    return output / f"{prepared.label.strip('/').replace('/', '-')}.landscape.json"


def _check_free(prepared: Prepared, target: Path) -> None:
    """Another surface may have taken hours: it is not overwritten unasked."""
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


def _seconds(pieces: Sequence[Piece], jobs: int) -> float:
    return sum(p.prepared.seconds(p.num_missing, jobs) for p in pieces if p.num_missing)


def choose_jobs(pieces: Sequence[Piece]) -> int:
    if torch.cuda.is_available() or _seconds(pieces, 1) < WORTH_PROCESSES:
        return 1
    threads = max(int(piece.prepared.origin["threads"]) for piece in pieces)
    return max(1, len(os.sched_getaffinity(0)) // threads)
