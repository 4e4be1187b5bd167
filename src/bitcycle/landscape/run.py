"""The loss landscape of a run, from its folder: weights, task and training data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from bitcycle.data import Batch
from bitcycle.landscape.result import Landscape
from bitcycle.landscape.surface import Ranges, loss_landscape
from bitcycle.tasks import Task
from bitcycle.train.checkpoint import CheckpointError, Checkpoints
from bitcycle.train.config_file import override
from bitcycle.train.distributed import reduce_sums
from bitcycle.train.evaluate import check_ranges_observed, eval_precision, restore
from bitcycle.train.run_directory import RunDirectory
from bitcycle.train.session import build_session, preserve_torch_settings
from bitcycle.warnings import BitcycleWarning


def run_landscape(
    directory: str | Path,
    *,
    grid: int = 25,
    extent: float = 1.0,
    seed: int = 0,
    precision: str = "high",
    ranges: Ranges = "batch",
    samples: int | None = 1000,
    checkpoint: Literal["last", "best"] = "last",
    overrides: Sequence[str] = (),
    label: str | None = None,
    file: str | Path | None = None,
    replace: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Landscape:
    """The loss landscape of a run on its first training samples, without augmentation.

    precision: high (the schedule's top), scheduled, full (float32), or bits such as w8a8. samples:
    None for the whole training split. overrides: settings that may differ on this machine, such as
    --data.root. label: the name of the run by default. The others are those of `loss_landscape`.
    """
    folder = RunDirectory(directory)
    config = override(folder.read_config(), overrides)
    checkpoints = Checkpoints(folder.checkpoints)
    loaded = checkpoints.load_newest() if checkpoint == "last" else checkpoints.load_best()
    if loaded is None:
        raise CheckpointError(f"{folder.path} has no {checkpoint} checkpoint")
    step, state = loaded
    if not folder.is_finished:
        message = f"{folder.path} is not finished; these are the weights of step {step}"
        warnings.warn(message, BitcycleWarning, stacklevel=2)
    with preserve_torch_settings():
        session = build_session(config, folder.path)
        restore(session, step, state)
        bits = eval_precision(precision, session.scheduler)
        if ranges == "observed":
            check_ranges_observed(session.model, bits)
        task, device = session.task, session.device
        kept = None
        if samples is not None:
            kept = [batch.to(device) for batch in first_batches(task, samples)]

        def batches() -> Iterable[Batch]:  # the whole split may not fit in memory
            return task.eval_batches("train") if kept is None else kept

        return loss_landscape(
            session.model, lambda model: mean_loss(task, model, batches(), device), grid=grid,
            extent=extent, seed=seed, precision=bits, ranges=ranges, label=label or config.run_name,
            file=file, replace=replace, progress=progress,
            settings={
                "num_samples": sum(_length(task, batch) for batch in batches()),
                "run": config.run_name, "checkpoint": checkpoint, "step": step, "asked": precision,
                "model": config.model.name, "data": config.data.name,
                "batch_size": config.data.eval_batch_size, "device": str(device),
                "trained_by": folder.read_environment().get("command", []),
            },
        )  # fmt: skip


def first_batches(task: Task, num: int) -> Iterator[Batch]:
    """The first `num` training samples, in the batches of an evaluation.

    Independent samples are counted exactly. Windows of a text, which carry a state, and graphs come
    in whole batches.
    """
    if num < 1:
        raise ValueError(f"samples ({num}) must be at least 1")
    for batch in task.eval_batches("train"):
        if batch.indices is not None:
            batch = replace_fields(
                batch,
                inputs=batch.inputs[:num],
                targets=batch.targets[:num],
                indices=batch.indices[:num],
            )
        yield batch
        num -= _length(task, batch)
        if num <= 0:
            return


def _length(task: Task, batch: Batch) -> int:
    return task.inputs(batch)[0].shape[0]


def mean_loss(
    task: Task, model: nn.Module, batches: Iterable[Batch], device: torch.device
) -> float:
    """The loss of `bitcycle eval`: the same sums, divided by the same count."""
    task.start_pass()
    totals: dict[str, Tensor] = {}
    for batch in batches:
        _, sums = task.loss(model, batch.to(device))
        for name, value in sums.items():
            totals[name] = totals[name] + value if name in totals else value
    return task.metrics(reduce_sums(totals, device, 1))["loss"]
