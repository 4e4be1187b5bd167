"""The training loop, top to bottom.

For every step `train` calls `train_step`, then logs, evaluates and saves a checkpoint when due.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import closing, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bitcycle.bits import Bits
from bitcycle.model_precision import describe_bits
from bitcycle.precision import ROLES, Precision
from bitcycle_lab.data import Batch
from bitcycle_lab.tasks import Split
from bitcycle_lab.train.checkpoint import Checkpoints
from bitcycle_lab.train.config import Time, steps_of
from bitcycle_lab.train.distributed import broadcast_buffers, on_main, reduce_sums
from bitcycle_lab.train.divergence import check_finite, explain_loss
from bitcycle_lab.train.evaluate import describe_precision, eval_precision, evaluate
from bitcycle_lab.train.feedback import collect_noise, read_feedback, record_validation
from bitcycle_lab.train.progress import Reporter, Status
from bitcycle_lab.train.run_directory import RunDirectory
from bitcycle_lab.train.session import Best, Session, swa_start
from bitcycle_lab.train.signals import Interrupted, StopRequest


def train(
    session: Session,
    directory: RunDirectory,
    reporter: Reporter,
    stop_request: StopRequest,
    events: Any = None,
) -> None:
    """Train from the session's step to the end of the run and write the run's files."""
    config, total = session.config, session.total_steps
    checkpoints = Checkpoints(directory.checkpoints, keep=config.checkpoint.keep)
    averaging_from = swa_start(session)
    began, before, first_step = time.monotonic(), session.seconds, session.step
    session.wrapped.train()
    with closing(remaining_steps(session)) as steps:
        for micro_batches in steps:
            train_step(session, micro_batches)
            session.step += 1
            step = session.step
            session.seconds = before + time.monotonic() - began
            if (
                session.swa is not None
                and averaging_from is not None
                and step >= averaging_from
                and (step - averaging_from) % config.swa.every == 0
            ):
                session.swa.update_parameters(session.model)
            reporter.advance(step)
            if step % config.tracking.log_every == 0 or step == total:
                pace = (session.seconds - before) / (step - first_step)
                _log(session, directory, reporter, events, pace * (total - step))
            if _is_due(config.eval.every, step, total) or step == total:
                _evaluate(session, directory, reporter, checkpoints, events)
            must_stop = stop_signal(session, stop_request)
            if _is_due(config.checkpoint.every, step, total) or step == total or must_stop:
                save_checkpoint(session, directory, checkpoints)
            if must_stop and step < total:
                raise Interrupted(
                    must_stop, f"stopped at step {step}; the checkpoint is in {directory.path}"
                )


def remaining_steps(
    session: Session, *, start: int | None = None, is_endless: bool = False
) -> Generator[list[Batch]]:
    """Yield the micro-batches of each optimizer step from `start` (the session's) on."""
    stop = None if is_endless else session.total_steps
    batches = session.batches.from_step(session.step if start is None else start, stop)
    group: list[Batch] = []
    try:
        for batch in batches:
            group.append(batch.to(session.device))
            if len(group) == session.config.accumulate:
                yield group
                group = []
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def train_step(session: Session, micro_batches: list[Batch]) -> None:
    """Take one optimizer step, then one step of the precision scheduler."""
    with collect_noise(session) as statistics:
        sums = optimizer_step(session, micro_batches)
    if session.scheduler is not None:
        session.scheduler.step(read_feedback(session, sums, statistics))


def optimizer_step(
    session: Session, micro_batches: list[Batch], *, checks_loss: bool = True
) -> dict[str, Tensor]:
    """Run forward and backward of every micro-batch, then step optimizer, cost meter and rate.

    Returns the metric sums of this step and adds them to the session's window.
    """
    accelerator, last = session.accelerator, len(micro_batches) - 1
    step_sums: dict[str, Tensor] = {}
    for i, batch in enumerate(micro_batches):
        with accelerator.no_sync(session.wrapped) if i < last else nullcontext():
            loss, sums = session.task.loss(session.wrapped, batch)
            # DDP averages over ranks; the shares of all ranks add up to 1
            accelerator.backward(loss * (batch.share * session.world_size))
        for name, value in sums.items():
            known = session.window.get(name)
            session.window[name] = value if known is None else known + value
            step_sums[name] = value if name not in step_sums else step_sums[name] + value
        if checks_loss and session.device.type == "cpu" and not math.isfinite(loss.item()):
            raise explain_loss(session, batch, loss.item())
    if session.config.clip_norm is not None:
        accelerator.clip_grad_norm_(session.wrapped.parameters(), session.config.clip_norm)
    session.wrapped_optimizer.step()
    session.wrapped_optimizer.zero_grad()
    session.meter.step(session.task.num_samples(micro_batches[0]))
    session.lr.step()
    return step_sums


def _log(
    session: Session, directory: RunDirectory, reporter: Reporter, events: Any, left: float
) -> None:
    """Write the metrics since the last line; left: seconds to the end of the run."""
    sums = reduce_sums(session.window, session.device, session.world_size)
    session.window = {}
    metrics = session.task.metrics(sums)
    if not math.isfinite(metrics["loss"]):
        raise explain_loss(session, None, metrics["loss"])
    precision = _applied_precision(session)
    saved = None if session.scheduler is None else 1 - session.relative_to(session.scheduler.top)
    line: dict[str, Any] = {
        "step": session.step,
        "kind": "train",
        **metrics,
        "bits": bits_by_role(precision),
        "lr": session.lr.value,
        "bitops": session.bitops,
        "seconds": round(session.seconds, 3),
    }
    if session.is_main:
        directory.add_metrics(line)
        _write_events(events, "train", session.step, line)
    metric = session.task.metric
    text = "fp32" if session.scheduler is None else describe_bits(precision)
    reporter.update(
        Status(session.step, session.total_steps, metrics["loss"], metric, metrics[metric],
               text, saved, left)
    )  # fmt: skip


def _applied_precision(session: Session) -> Precision | dict[str, Precision]:
    """The bits of the last step; the scheduler already has those of the next one."""
    if session.scheduler is None:
        return Precision()
    return session.scheduler.precision_at(session.step - 1)


def bits_by_role(precision: Precision | dict[str, Precision]) -> dict[str, Any]:
    """Bits per role in JSON types; where layers differ, a sorted list of the distinct values.

    A format is its name.

    >>> bits_by_role(Precision.parse("w=nvfp4,a=nvfp4,e=8"))
    {'weight': 'nvfp4', 'act': 'nvfp4', 'error': 8, 'grad': None}
    """
    if isinstance(precision, Precision):
        return {role: bits.to_json() for role, bits in precision.bits.items()}
    rows = list(precision.values())
    distinct = {role: {Bits.of(getattr(row, role) or 32) for row in rows} for role in ROLES}
    return {
        role: [bits.to_json() for bits in sorted(values, key=lambda b: (b.order, str(b)))]
        for role, values in distinct.items()
    }


def _evaluate(
    session: Session,
    directory: RunDirectory,
    reporter: Reporter,
    checkpoints: Checkpoints,
    events: Any,
) -> None:
    """Evaluate on the validation split and keep the best weights, or else on the test split."""
    task = session.task
    split: Split = "validation" if task.has_validation else "test"
    precision = eval_precision(session.config.eval.precision, session.scheduler)
    broadcast_buffers(session)
    metrics = evaluate(
        task, session.model, split, precision,
        device=session.device, rank=session.rank, world_size=session.world_size,
    )  # fmt: skip
    at = describe_precision(session.model, precision)
    if not math.isfinite(metrics["loss"]):
        raise explain_loss(session, None, metrics["loss"], name=f"{split} loss")
    line = {"step": session.step, "kind": "eval", "split": split, "precision": at, **metrics}
    if session.is_main:
        directory.add_metrics(line)
        _write_events(events, split, session.step, line)
    metric = metrics[task.metric]
    reporter.say(f"step {session.step}  {split} {task.metric} {metric:.2f} at {at}")
    if split != "validation":
        return
    session.lr.after_evaluation(metric)
    record_validation(session, metric)
    best = session.best
    if best is None or (metric > best.metric if task.higher_is_better else metric < best.metric):
        session.best = Best(session.step, metric)
        run = {
            "bits": None if session.scheduler is None else session.scheduler.state_dict(),
            "range_test": None if session.range_test is None else session.range_test.to_dict(),
        }
        state: dict[str, Any] = {"model": session.model.state_dict(), "run": run}
        on_main(session, lambda: checkpoints.save_best(session.step, state))


def save_checkpoint(session: Session, directory: RunDirectory, checkpoints: Checkpoints) -> None:
    """Write a checkpoint of the current step. Every rank must call this; rank 0 writes."""
    check_finite(session)
    state = session.state_dict()

    def write() -> None:
        directory.sync_metrics()
        checkpoints.save(session.step, state)

    on_main(session, write)


def _is_due(every: Time, step: int, total: int) -> bool:
    period = steps_of(every, total)
    return period > 0 and step % period == 0


def stop_signal(session: Session, stop_request: StopRequest) -> int:
    """The signal that any rank received, 0 for none; equal on all ranks."""
    signum = stop_request.signum or 0
    if session.world_size > 1:
        asked = torch.tensor(signum, device=session.device)
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        signum = int(asked)
    return signum


def _write_events(events: Any, prefix: str, step: int, line: dict[str, Any]) -> None:
    if events is None:
        return
    for name, value in line.items():
        if name != "step" and isinstance(value, int | float):
            events.add_scalar(f"{prefix}/{name}", value, step)
    for role, bits in line.get("bits", {}).items():
        if isinstance(bits, int):
            events.add_scalar(f"bits/{role}", bits, step)
        elif isinstance(bits, str):  # a format: the bits of an element
            events.add_scalar(f"bits/{role}", Bits.of(bits).cost_bits, step)
