"""Evaluate the final, best and averaged weights of a run on the test split, for its result."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from bitcycle.calibrate import calibrate
from bitcycle.model_precision import (
    at_precision,
    gpu_kernel_state,
    is_converted,
    kernel_state,
    kernels_by_layer,
    restore_kernels,
)
from bitcycle.native.library import instruction_set
from bitcycle.precision import Precision
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.train.checkpoint import CheckpointError, Checkpoints
from bitcycle_lab.train.distributed import broadcast_buffers
from bitcycle_lab.train.evaluate import describe_precision, eval_precision, evaluate
from bitcycle_lab.train.result import RunResult
from bitcycle_lab.train.run_directory import RunDirectory
from bitcycle_lab.train.session import Session


def make_result(session: Session, directory: RunDirectory) -> RunResult:
    """Evaluate the final weights. Every rank must call this; the result is equal on all."""
    config = session.config
    precision = eval_precision(config.eval.precision, session.scheduler)
    broadcast_buffers(session)
    final = _test(session, session.model, precision)
    swa = None
    if session.swa is not None and int(session.swa.n_averaged) > 0:
        averaged = session.swa.module
        restore_kernels(averaged, kernel_state(session.model))  # chosen after the copy was made
        refresh_statistics(session, averaged, precision)
        swa = _test(session, averaged, precision)
    return RunResult(
        name=config.name,
        seed=config.seed,
        metric=session.task.metric,
        final=final,
        best=_test_best(session, directory, precision),
        swa=swa,
        eval_precision=describe_precision(session.model, precision),
        cost=_cost(session),
        steps=session.step,
        seconds=round(session.seconds, 3),
        kernels=kernels_by_layer(session.model),
        instruction_set=instruction_set(),
        **gpu_kernel_state(session.model),
        weights_sha256=weights_digest(session.model),
        directory=str(directory.path),
        range_test=None if session.range_test is None else session.range_test.to_dict(),
    )


def _test(
    session: Session, model: nn.Module, precision: Precision | dict[str, Precision]
) -> dict[str, float]:
    with session.accelerator.autocast():  # accelerate does not wrap the averaged model
        return evaluate(
            session.task, model, "test", precision,
            device=session.device, rank=session.rank, world_size=session.world_size,
        )  # fmt: skip


def _test_best(
    session: Session, directory: RunDirectory, precision: Precision | dict[str, Precision]
) -> dict[str, float] | None:
    if session.best is None:
        return None
    try:
        loaded = Checkpoints(directory.checkpoints).load_best()
        if loaded is None or loaded[0] != session.best.step:
            raise CheckpointError(f"it is not the one of step {session.best.step}")
    except CheckpointError as error:  # the final weights are still valid
        warnings.warn(f"the best checkpoint cannot be used: {error}; the result has no best",
                      BitcycleWarning, stacklevel=2)  # fmt: skip
        return None
    step, state = loaded
    kept = {name: value.clone() for name, value in session.model.state_dict().items()}
    session.model.load_state_dict(state["model"])
    metrics = _test(session, session.model, precision)
    session.model.load_state_dict(kept)
    return {"step": step, "validation": session.best.metric, **metrics}


def _cost(session: Session) -> dict[str, Any]:
    top = Precision() if session.scheduler is None else session.scheduler.top
    tested = {} if session.range_test is None else session.range_test.bitops
    return {
        "convention": "exact",
        "bitops": session.bitops,
        "range_test": sum(tested.values()),  # of those
        "by_matmul": {k: n + tested.get(k, 0) for k, n in session.meter.by_matmul().items()},
        "relative_to_static_top": session.relative_to(top),
        "static_top": str(top),
        "relative_to_float32": session.relative_to(Precision()),
        "uncounted": list(session.meter.uncounted),
    }


def refresh_statistics(
    session: Session, model: nn.Module, precision: Precision | dict[str, Precision]
) -> None:
    """Recompute norm statistics, then activation ranges, of averaged weights; no augmentation."""

    def batches() -> Iterator[list[tuple[torch.Tensor, ...]]]:
        for batch in session.task.eval_batches("train"):
            yield [session.task.inputs(batch.to(session.device))]  # both take the first element

    with session.accelerator.autocast():
        if is_converted(model):
            with at_precision(model, precision):  # type: ignore[arg-type]
                update_bn(batches(), _Unpacking(model))
                calibrate(model, batches())
        else:
            update_bn(batches(), _Unpacking(model))


class _Unpacking(nn.Module):
    """Passes the tuple that `update_bn` hands over to the model as separate arguments."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: tuple[torch.Tensor, ...]) -> Any:
        """The model's own."""
        return self.model(*inputs)


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over every tensor of the state dict; equal only for bit-equal models."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if not value.numel():
            continue
        digest.update(name.encode())
        digest.update(
            value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()
