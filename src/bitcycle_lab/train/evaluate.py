"""Evaluate a model at explicit bits: a finished run from its folder, or a model in training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from bitcycle.model_precision import (
    at_precision,
    get_precision,
    is_converted,
    quantized_layers,
    rounded_roles,
)
from bitcycle.precision import Precision
from bitcycle.scheduler import PrecisionScheduler
from bitcycle_lab.data import Batch
from bitcycle_lab.tasks import Split, Task
from bitcycle_lab.train.checkpoint import Checkpoints, explain_load_errors
from bitcycle_lab.train.config_file import override
from bitcycle_lab.train.distributed import reduce_sums
from bitcycle_lab.train.run_directory import RunDirectory
from bitcycle_lab.train.session import (
    RangeTestOutcome,
    Session,
    build_session,
    preserve_torch_settings,
)


def evaluate_run(
    run_dir: str | Path,
    *,
    precision: str = "high",
    split: Split = "test",
    checkpoint: Literal["last", "best"] = "last",
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Evaluate a run on a split. Writes nothing.

    overrides: settings that may differ on this machine, such as --data.root. Raises ValueError if
    activations would be quantized and their ranges were never observed in training.
    """
    with load_run(run_dir, checkpoint=checkpoint, overrides=overrides) as (session, step):
        if split == "validation" and not session.task.has_validation:
            raise ValueError("the run has no validation split; evaluate test or train")
        bits = eval_precision(precision, session.scheduler)
        check_ranges_observed(session.model, bits)
        return {
            "run": str(Path(run_dir)),
            "step": step,
            "split": split,
            "precision": describe_precision(session.model, bits),
            "metrics": evaluate(session.task, session.model, split, bits, device=session.device),
        }


@contextmanager
def load_run(
    run_dir: str | Path, *, checkpoint: Literal["last", "best"], overrides: Sequence[str]
) -> Iterator[tuple[Session, int]]:
    """The session of a run with the weights and bits of a checkpoint, and the checkpoint's step.

    After the `with` torch's settings are what they were.
    """
    directory = RunDirectory(run_dir)
    config = override(directory.read_config(), overrides)
    checkpoints = Checkpoints(directory.checkpoints)
    loaded = checkpoints.load_newest() if checkpoint == "last" else checkpoints.load_best()
    if loaded is None:
        kind = "best checkpoint" if checkpoints.steps() else "checkpoint yet"
        raise FileNotFoundError(f"{directory.path} has no {kind}")
    step, state = loaded
    with preserve_torch_settings():
        session = build_session(config, directory.path)
        restore(session, step, state)
        yield session, step


def restore(session: Session, step: int, state: Mapping[str, Any]) -> None:
    """Load the weights and the bits of a checkpoint."""
    with explain_load_errors(step):
        session.model.load_state_dict(state["model"])
        saved = state["run"]
        if saved["range_test"] is not None:
            session.set_lower_bound(RangeTestOutcome.from_dict(saved["range_test"]))
        if session.scheduler is not None:
            adaptive = (saved["bits"] or {}).get("adaptive")
            at = min(step, session.total_steps)
            session.scheduler.load_state_dict({"step_count": at, "adaptive": adaptive})


def evaluate(
    task: Task,
    model: nn.Module,
    split: Split,
    precision: Precision | dict[str, Precision],
    *,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
) -> dict[str, float]:
    """The metrics of a split. `model` is not wrapped; each rank evaluates its share of batches."""
    carried = task.state_dict()
    batches = task.eval_batches(split, rank=rank, world_size=world_size)
    with evaluation_mode(model, precision):
        metrics = evaluate_batches(task, model, batches, device, world_size)
    task.load_state_dict(carried)
    return metrics


def evaluate_batches(
    task: Task,
    model: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    world_size: int = 1,
) -> dict[str, float]:
    """The metrics of these batches, in the present mode and at the present bits of the model."""
    task.start_pass()
    totals: dict[str, torch.Tensor] = {}
    for batch in batches:
        _, sums = task.loss(model, batch.to(device))
        for name, value in sums.items():
            totals[name] = totals[name] + value if name in totals else value
    return task.metrics(reduce_sums(totals, device, world_size))


@contextmanager
def evaluation_mode(
    model: nn.Module, precision: Precision | dict[str, Precision]
) -> Iterator[None]:
    """Evaluation mode without gradients at these bits inside the `with`; restored after it."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            if is_converted(model):
                with at_precision(model, precision):  # type: ignore[arg-type]
                    yield
            else:
                yield
    finally:
        model.train(was_training)


def eval_precision(asked: str, bits: PrecisionScheduler | None) -> Precision | dict[str, Precision]:
    """The bits for "high", "scheduled", "full" or a text such as "w4a4" or "w=nvfp4,a=nvfp4"."""
    if bits is None or asked == "full":
        return Precision()
    if asked == "high":
        return bits.highest
    if asked == "scheduled":
        return bits.precision
    return Precision.parse(asked)


def describe_precision(model: nn.Module, precision: Precision | dict[str, Precision]) -> str:
    """The bits of a forward pass as text, such as w8a8; fp32 for a float model."""
    if not is_converted(model):
        return "fp32"
    if isinstance(precision, Precision):
        roles = rounded_roles(layer for _, layer in quantized_layers(model))
        return str(_forward_bits(precision).in_force(roles))
    with at_precision(model, precision):  # type: ignore[arg-type]
        actual = get_precision(model)
    values = [actual] if isinstance(actual, Precision) else actual.values()
    return " / ".join(sorted({str(_forward_bits(each)) for each in values}))


def _forward_bits(precision: Precision) -> Precision:
    return Precision(weight=precision.weight, act=precision.act)


def layers_without_ranges(model: nn.Module) -> list[str]:
    """The layers that need activation ranges and have observed none."""
    if not is_converted(model):
        return []
    return [
        entry.name
        for entry, layer in quantized_layers(model)
        if layer.settings.quantizer.observes and not layer.is_observed
    ]


def check_ranges_observed(model: nn.Module, bits: Precision | dict[str, Precision]) -> None:
    """Raise ValueError if activations are quantized and their ranges were never observed."""
    unobserved = layers_without_ranges(model)
    rows = [bits] if isinstance(bits, Precision) else bits.values()
    needs_ranges = not all(row.bits["act"].is_format for row in rows)  # formats have none
    if unobserved and needs_ranges and describe_precision(model, bits) != "fp32":
        raise ValueError(
            f"activation ranges were never observed in {', '.join(unobserved[:3])}; evaluate with "
            "--precision full"
        )
