"""What adaptive schedules read after a step: the loss, gradient noise, the validation metric."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bitcycle.collect import Collection, collect
from bitcycle.scheduler import PrecisionScheduler
from bitcycle_lab.tasks import Task
from bitcycle_lab.train.config import RunConfig, steps_of
from bitcycle_lab.train.distributed import sum_over_ranks

if TYPE_CHECKING:
    from bitcycle_lab.train.session import Session


@contextmanager
def collect_noise(session: Session) -> Iterator[Collection | None]:
    """Collect the quantization noise of a step if a schedule reads it; None otherwise."""
    if session.scheduler is None or "noise_norm" not in session.scheduler.needs:
        yield None
        return
    with collect(session.model) as statistics:
        yield statistics


def read_feedback(
    session: Session, sums: Mapping[str, Tensor], statistics: Collection | None
) -> dict[str, float]:
    """The values that schedules read after this step, by name; equal on all ranks.

    sums: of this step, as `Task.loss` returns them. A validation metric is passed once, after the
    first step that follows its evaluation.
    """
    assert session.scheduler is not None
    feedback, session.pending_metrics = dict(session.pending_metrics), {}
    if "loss" in session.scheduler.needs:
        names = sorted(sums)  # equal on all ranks: each has a micro-batch
        stacked = torch.stack([sums[name].double() for name in names])
        values = sum_over_ranks(stacked, session.world_size)
        feedback["loss"] = session.task.metrics(dict(zip(names, values, strict=True)))["loss"]
    if statistics is not None:
        norms = statistics.gradient_noise()
        squares = torch.tensor([norm**2 for norm in norms.values()], dtype=torch.float64)
        totals = sum_over_ranks(squares.to(session.device), session.world_size)
        feedback |= {name: math.sqrt(total) for name, total in zip(norms, totals, strict=True)}
    return feedback


def record_validation(session: Session, metric: float) -> None:
    """Keep a validation metric for the schedules, negated if higher is better."""
    if session.scheduler is not None and "validation" in session.scheduler.reads:
        session.pending_metrics["validation"] = -metric if session.task.higher_is_better else metric


def check_feedback(config: RunConfig, task: Task, bits: PrecisionScheduler, total: int) -> None:
    """Raise ValueError if a schedule reads a value that this run never measures."""
    if "validation" in bits.reads:
        if not task.has_validation:
            raise ValueError(
                "a schedule with on=validation needs a validation split: set data.validation, "
                "such as 0.1"
            )
        if not 0 < steps_of(config.eval.every, total) < total:
            raise ValueError(
                f"a schedule with on=validation needs an evaluation before the end of {total} "
                f"steps, and eval.every is {config.eval.every}"
            )
    if "noise_norm" in bits.reads and not bits.rounds_errors:
        raise ValueError(
            "a noise schedule follows the noise of rounded errors, and no error is rounded: set "
            "precision.backward, such as 8"
        )
