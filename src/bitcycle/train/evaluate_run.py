"""Evaluating a run from its folder, as `bitcycle eval` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from bitcycle.precision import Precision
from bitcycle.tasks import Split
from bitcycle.train.checkpoint import CheckpointError, Checkpoints, taken_back
from bitcycle.train.configfile import override
from bitcycle.train.directory import RunDirectory
from bitcycle.train.evaluate import (
    describe_precision,
    eval_precision,
    evaluate,
    unobserved_layers,
)
from bitcycle.train.reproduce import kept_settings
from bitcycle.train.session import FoundLow, Session, build_session


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
