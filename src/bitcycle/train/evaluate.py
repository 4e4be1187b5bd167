"""Evaluation at explicit bits, over all processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from bitcycle.model_precision import at_precision, get_precision, quantized_layers
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.precision import Precision
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.tasks import Split, Task
from bitcycle.train.checkpoint import CheckpointError, Checkpoints, taken_back
from bitcycle.train.config_file import override
from bitcycle.train.run_directory import RunDirectory
from bitcycle.train.session import FoundLow, Session, build_session, kept_settings


def is_converted(model: nn.Module) -> bool:
    """Whether the model has any quantized layer."""
    return any(isinstance(module, QuantizedLayer) for module in model.modules())


def eval_precision(asked: str, bits: PrecisionScheduler | None) -> Precision | dict[str, Precision]:
    """The bits that high, scheduled, full or a text such as w4a4 stand for."""
    if bits is None or asked == "full":
        return Precision()
    if asked == "high":
        return bits.highest
    if asked == "scheduled":
        return bits.precision
    return Precision.parse(asked)


@contextmanager
def evaluating(model: nn.Module, precision: Precision | dict[str, Precision]) -> Iterator[None]:
    """Evaluation mode, no gradients, these bits; all as it was afterwards."""
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
    """The metrics of a split; the model must not be wrapped, ranks see different batches."""
    carried = task.state_dict()
    task.start_pass()
    totals: dict[str, torch.Tensor] = {}
    with evaluating(model, precision):
        for batch in task.eval_batches(split, rank=rank, world_size=world_size):
            _, sums = task.loss(model, batch.to(device))
            for name, value in sums.items():
                totals[name] = totals[name] + value if name in totals else value
    task.load_state_dict(carried)
    return task.metrics(reduce_sums(totals, device, world_size))


def reduce_sums(
    sums: Mapping[str, torch.Tensor], device: torch.device, world_size: int
) -> dict[str, float]:
    """Sums over all processes, as numbers; a process without a batch adds nothing."""
    if world_size > 1:
        gathered: list[list[str]] = [[] for _ in range(world_size)]
        dist.all_gather_object(gathered, sorted(sums))
        names = sorted({name for part in gathered for name in part})
    else:
        names = sorted(sums)
    zero = torch.zeros((), dtype=torch.float64, device=device)
    values = torch.stack([sums.get(name, zero).double() for name in names])
    if world_size > 1:
        dist.all_reduce(values)
    return dict(zip(names, values.tolist(), strict=True))


def unobserved_layers(model: nn.Module) -> list[str]:
    """Layers whose activation ranges nobody has observed."""
    if not is_converted(model):
        return []
    return [
        entry.name
        for entry, layer in quantized_layers(model)
        if layer.settings.quantizer.observes and not layer.is_observed
    ]


def describe_precision(model: nn.Module, precision: Precision | dict[str, Precision]) -> str:
    """Short text for tables and results: the bits that act in a forward pass."""
    if not is_converted(model):
        return "fp32"
    if isinstance(precision, Precision):
        return str(precision.replace(error=None, grad=None))
    with at_precision(model, precision):  # type: ignore[arg-type]
        texts = {str(p.replace(error=None, grad=None)) for p in _values(get_precision(model))}
    return " / ".join(sorted(texts))


def _values(precision: Precision | dict[str, Precision]) -> list[Precision]:
    return [precision] if isinstance(precision, Precision) else list(precision.values())


def evaluate_run(
    run_dir: str | Path,
    *,
    precision: str = "high",
    split: Split = "test",
    checkpoint: Literal["last", "best"] = "last",
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Metrics of a split, with the step and the bits they belong to. Writes nothing.

    overrides: for what may differ on this machine, such as --data.root. Quantized evaluation needs
    observed activation ranges: a run that never observed them is refused.
    """
    directory = RunDirectory(run_dir)
    config = override(directory.read_config(), overrides)
    checkpoints = Checkpoints(directory.checkpoints)
    loaded = checkpoints.load_newest() if checkpoint == "last" else checkpoints.load_best()
    if loaded is None:
        raise CheckpointError(f"{directory.path} has no {checkpoint} checkpoint to evaluate")
    step, state = loaded
    with kept_settings():
        session = build_session(config, directory.path)
        bits, metrics = _evaluate(session, step, state, precision, split)
    return {
        "run": str(directory.path),
        "step": step,
        "split": split,
        "precision": bits,
        "metrics": metrics,
    }


def _evaluate(
    session: Session, step: int, state: dict[str, Any], precision: str, split: Split
) -> tuple[str, dict[str, float]]:
    if split == "validation" and not session.task.has_validation:
        raise ValueError("the run has no validation split; evaluate test or train")
    restore(session, step, state)
    bits = eval_precision(precision, session.bits)
    check_observed(session.model, bits)
    metrics = evaluate(session.task, session.model, split, bits, device=session.device)
    return describe_precision(session.model, bits), metrics


def restore(session: Session, step: int, state: Mapping[str, Any]) -> None:
    """The weights and the bits of a checkpoint: what an evaluation needs of it."""
    with taken_back(step):
        session.model.load_state_dict(state["model"])
        saved = state.get("run", {})
        if saved.get("range_test") is not None:
            session.take_low(FoundLow.from_dict(saved["range_test"]))
        if session.bits is not None:
            adaptive = (saved.get("bits") or {}).get("adaptive")
            at = min(step, session.total_steps)
            session.bits.load_state_dict({"step_count": at, "adaptive": adaptive})


def check_observed(model: nn.Module, bits: Precision | dict[str, Precision]) -> None:
    """Raise if quantized activations would have no range to be put on."""
    unobserved = unobserved_layers(model)
    if unobserved and describe_precision(model, bits) != "fp32":
        raise ValueError(
            f"activation ranges were never observed in {', '.join(unobserved[:3])}; evaluate with "
            "--precision full, or train with quantization on"
        )
