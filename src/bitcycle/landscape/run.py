"""The loss landscape of a run, from its folder: weights, task and training data.

`prepare` loads a run and evaluates its centre, `compute` the other points of the grid.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bitcycle.data import Batch
from bitcycle.landscape.points import LossAt, PointFile, compute_points
from bitcycle.landscape.result import Grid, Landscape, Point, to_plain
from bitcycle.landscape.surface import (
    Ranges,
    Surface,
    bits_to_plain,
    check_ranges,
    moving_parameters,
    shapes_digest,
    surface_of,
)
from bitcycle.tasks import Task
from bitcycle.train.checkpoint import CheckpointError, Checkpoints
from bitcycle.train.config_file import override
from bitcycle.train.distributed import reduce_sums
from bitcycle.train.evaluate import (
    check_ranges_observed,
    describe_precision,
    eval_precision,
    restore,
)
from bitcycle.train.result import weights_digest
from bitcycle.train.run_directory import RunDirectory, machine
from bitcycle.train.session import Session, build_session, preserve_torch_settings

Checkpoint = Literal["last", "best"]


@dataclass(frozen=True)
class LoadedRun:
    """A run in memory, with the surface of its losses."""

    surface: Surface
    label: str
    precision: str
    num_samples: int
    origin: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunSurface:
    """The settings of a landscape of a run; every process loads the run itself.

    precision: high (the schedule's top), scheduled, full (float32), or bits such as w8a8.
    ranges: "batch" or "observed", see `surface_of`. samples: None for the whole training split.
    seed: of the directions, equal for all runs that are compared. overrides: settings that may
    differ on this machine, such as --data.root. threads: of each process; None: the run's own, else
    one. The last bits of a loss depend on the threads, but never on the number of processes.
    """

    directory: str
    precision: str = "high"
    ranges: Ranges = "batch"
    samples: int | None = 1000
    seed: int = 0
    checkpoint: Checkpoint = "last"
    overrides: tuple[str, ...] = ()
    threads: int | None = None

    def __post_init__(self) -> None:
        check_ranges(self.ranges)
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads ({self.threads}) must be at least 1")

    @contextmanager
    def opened(self) -> Iterator[LossAt]:
        """(alpha, beta) -> loss, inside the `with` block."""
        with self.loaded() as run:
            yield run.surface.loss_at

    @contextmanager
    def loaded(self) -> Iterator[LoadedRun]:
        """Load the run from its checkpoint."""
        directory = RunDirectory(self.directory)
        config = override(directory.read_config(), list(self.overrides))
        config = replace(config, threads=self.threads or config.threads or 1)
        checkpoints = Checkpoints(directory.checkpoints)
        found = checkpoints.load_newest() if self.checkpoint == "last" else checkpoints.load_best()
        if found is None:
            raise CheckpointError(f"{directory.path} has no {self.checkpoint} checkpoint")
        step, state = found
        with preserve_torch_settings():
            session = build_session(config, directory.path)
            restore(session, step, state)
            with self._opened(session, step) as run:
                yield run

    @contextmanager
    def _opened(self, session: Session, step: int) -> Iterator[LoadedRun]:
        model, config = session.model, session.config
        bits = eval_precision(self.precision, session.scheduler)
        if self.ranges == "observed":
            check_ranges_observed(model, bits)
        samples = FirstSamples(session.task, self.samples, session.device)
        origin = {
            "run": config.run_name,
            "checkpoint": self.checkpoint,
            "step": step,
            "weights": weights_digest(model),
            "shapes": shapes_digest(moving_parameters(model).items()),
            "bits": bits_to_plain(bits),
            "ranges": self.ranges,
            "seed": self.seed,
            "data": config.data.name,
            "num_samples": samples.num_samples,
            "batch_size": config.data.eval_batch_size,
            "threads": config.threads,
            "device": str(session.device),
            "torch": str(torch.__version__),
        }
        precision = describe_precision(model, bits)
        loss = samples.mean_loss
        with surface_of(model, loss, seed=self.seed, precision=bits, ranges=self.ranges) as surface:
            yield LoadedRun(surface, config.run_name, precision, samples.num_samples, origin)


@dataclass(frozen=True)
class PreparedSurface:
    """A surface with the loss at its centre and the seconds that loading and a point take.

    origin also has the loss at the centre. Points of an earlier computation are used only if that
    is equal to the bit, which shows that data, arithmetic and machine give the same numbers.
    """

    what: RunSurface
    grid: Grid
    label: str
    precision: str
    num_samples: int
    center: float
    origin: dict[str, Any]
    load_seconds: float
    point_seconds: float

    def seconds(self, num_points: int, jobs: int) -> float:
        """Estimated time of so many points."""
        return self.load_seconds + self.point_seconds * num_points / jobs


def prepare(what: RunSurface, grid: Grid) -> PreparedSurface:
    """Load the run and evaluate its centre twice, the second time to measure a point."""
    start = time.perf_counter()
    with what.loaded() as run:
        center = run.surface.loss_at(0.0, 0.0)
        loaded = time.perf_counter()
        run.surface.loss_at(0.0, 0.0)
        end = time.perf_counter()
        shape = {"grid": grid.num, "extent": grid.extent, "center": center}
        origin = to_plain({**run.origin, **shape})
        return PreparedSurface(
            what=what,
            grid=grid,
            label=run.label,
            precision=run.precision,
            num_samples=run.num_samples,
            center=center,
            origin=origin,
            load_seconds=loaded - start,
            point_seconds=end - loaded,
        )


def read_finished(prepared: PreparedSurface, target: Path) -> Landscape | None:
    """The landscape in a file, if it has the same origin; else None."""
    if not target.exists():
        return None
    found = Landscape.read(target)
    return found if found.origin == prepared.origin else None


def compute(
    prepared: PreparedSurface,
    target: Path,
    *,
    jobs: int = 1,
    advance: Callable[[int], None] = lambda done: None,
) -> Landscape:
    """Compute the missing points and write the landscape. advance: called with the points done.

    Points are kept in a file next to the target as they come. After an interruption, the next call
    computes the rest, and the result has exactly the numbers of an uninterrupted one.
    """
    grid, store = prepared.grid, point_file(prepared, target)
    last = time.perf_counter() - prepared.load_seconds - prepared.point_seconds
    finished = read_finished(prepared, target)
    if finished is not None:
        store.remove()  # left by a process that was killed after the write
        return finished

    def keep(point: Point, loss: float) -> None:
        nonlocal last
        now = time.perf_counter()
        store.add(point, loss, now - last)
        last = now

    with store.opened():
        if grid.center not in store.losses:
            keep(grid.center, prepared.center)
        missing = [point for point in grid.points if point not in store.losses]
        advance(len(store.losses))
        with closing(compute_points(prepared.what, grid, missing, jobs=jobs)) as computed:
            for point, loss in computed:
                keep(point, loss)
                advance(len(store.losses))
        landscape = Landscape(
            alphas=grid.values,
            betas=grid.values,
            losses=grid.table(store.losses),
            label=prepared.label,
            precision=prepared.precision,
            num_samples=prepared.num_samples,
            seed=prepared.what.seed,
            ranges=prepared.what.ranges,
            origin=prepared.origin,
            made=_made(prepared, store.seconds, jobs),
        )
        landscape.write(target)
        store.remove()
    return landscape


def _made(prepared: PreparedSurface, seconds: float | None, jobs: int) -> dict[str, Any]:
    """Machine and jobs of the last part, and the seconds of all parts."""
    directory = RunDirectory(prepared.what.directory)
    config, begun = directory.read_config(), directory.read_environment()
    return {
        "machine": machine(),
        "threads": prepared.origin["threads"],
        "jobs": jobs,
        "seconds": None if seconds is None else round(seconds, 3),
        "model": config.model.name,
        "asked": prepared.what.precision,
        "overrides": list(prepared.what.overrides),
        "trained_by": begun.get("command", []),
        "trained_threads": config.threads or begun.get("num_threads"),
    }


def point_file(prepared: PreparedSurface, target: Path) -> PointFile:
    """The points of an unfinished landscape: landscape.partial-1a2b3c4d.jsonl.

    The name depends on the settings: trying other settings keeps the points of a long computation.
    """
    text = json.dumps(prepared.origin, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:8]
    return PointFile(target.with_name(f"{target.stem}.partial-{key}.jsonl"), prepared.origin)


def num_missing(prepared: PreparedSurface, target: Path) -> int:
    """The number of points that are still to be computed."""
    if read_finished(prepared, target) is not None:
        return 0
    known = point_file(prepared, target).read()
    return len(prepared.grid.points) - len({*known, prepared.grid.center})


# -- training samples ------------------------------------------------------------------------------


class FirstSamples:
    """The first `num` training samples (None: all), in the batches of an evaluation.

    Independent samples are counted exactly. Windows of a text, which carry a state, and graphs come
    in whole batches.
    """

    def __init__(self, task: Task, num: int | None, device: torch.device) -> None:
        if num is not None and num < 1:
            raise ValueError(f"samples ({num}) must be at least 1")
        self._task, self._num, self._device = task, num, device
        self._kept = None if num is None else list(self._batches())
        self.num_samples = sum(_length(task, batch) for batch in self)

    def __iter__(self) -> Iterator[Batch]:
        return self._batches() if self._kept is None else iter(self._kept)

    def _batches(self) -> Iterator[Batch]:
        count = 0
        for batch in self._task.eval_batches("train"):
            left = None if self._num is None else self._num - count
            if left is not None and left <= 0:
                return
            part = batch if left is None else _first(batch, left)
            count += _length(self._task, part)
            yield part.to(self._device)

    def mean_loss(self, model: nn.Module) -> float:
        """The loss of `bitcycle eval`: the same sums, divided by the same count."""
        self._task.start_pass()
        totals: dict[str, Tensor] = {}
        for batch in self:
            _, sums = self._task.loss(model, batch)
            for name, value in sums.items():
                totals[name] = totals[name] + value if name in totals else value
        return self._task.metrics(reduce_sums(totals, self._device, 1))["loss"]


def _length(task: Task, batch: Batch) -> int:
    return task.inputs(batch)[0].shape[0]


def _first(batch: Batch, num: int) -> Batch:
    if batch.indices is None or len(batch.indices) <= num:  # one that cannot be cut has none
        return batch
    return replace(
        batch,
        inputs=batch.inputs[:num],
        targets=batch.targets[:num],
        indices=batch.indices[:num],
    )
