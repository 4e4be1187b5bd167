"""What adaptive schedules are told after a step: the loss, gradient noise, a validation metric."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from bitcycle.collect import Collection, collect
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.tasks import Task
from bitcycle.train.config import RunConfig, steps_of

if TYPE_CHECKING:
    from bitcycle.train.session import Session


@contextmanager
def measuring(session: Session) -> Iterator[Collection | None]:
    """Gather the noise of quantization while a step runs, only if a schedule wants to know it."""
    if session.bits is None or "noise_norm" not in session.bits.needs:
        yield None
        return
    with collect(session.model) as statistics:
        yield statistics


def measured(
    session: Session, sums: Mapping[str, Tensor], statistics: Collection | None
) -> dict[str, float]:
    """By name what the schedules read after this step; the same in all processes.

    sums: of this step, as the task's loss gives them. A validation metric is handed on once, by
    the first step after its evaluation.
    """
    assert session.bits is not None
    told, session.news = dict(session.news), {}
    if "loss" in session.bits.needs:
        names = sorted(sums)  # the same everywhere: every process has a micro-batch
        values = _sum_up(session, torch.stack([sums[name].double() for name in names]))
        told["loss"] = session.task.metrics(dict(zip(names, values, strict=True)))["loss"]
    if statistics is not None:
        norms = statistics.gradient_noise()
        squares = torch.tensor([norm**2 for norm in norms.values()], dtype=torch.float64)
        totals = _sum_up(session, squares.to(session.device))
        told |= {name: math.sqrt(total) for name, total in zip(norms, totals, strict=True)}
    return told


def _sum_up(session: Session, values: Tensor) -> list[float]:
    if session.world_size > 1:
        dist.all_reduce(values)
    numbers: list[float] = values.tolist()
    return numbers


def note_validation(session: Session, metric: float) -> None:
    """Keep a validation metric for the schedules; negative if it grows as the model gets better."""
    if session.bits is not None and "validation" in session.bits.reads:
        session.news["validation"] = -metric if session.task.higher_is_better else metric


def check_feedback(config: RunConfig, task: Task, bits: PrecisionScheduler, total: int) -> None:
    """Raise when a schedule waits for something that this run never measures."""
    if "validation" in bits.reads:
        if not task.has_validation:
            raise ValueError(
                "a precision schedule follows the validation metric (on=validation) and there is "
                "no validation split; set data.validation, such as 0.1"
            )
        if not 0 < steps_of(config.eval.every, total) < total:
            raise ValueError(
                f"a precision schedule follows the validation metric (on=validation), which "
                f"eval.every {config.eval.every} does not measure before the end of {total} steps; "
                "evaluate more often, such as every 0.05"
            )
    if "noise_norm" in bits.reads and not bits.rounds_errors:
        raise ValueError(
            "a precision schedule follows the noise of rounded errors (noise:...), and no error is "
            "ever rounded; give precision.backward bits, such as 8"
        )
