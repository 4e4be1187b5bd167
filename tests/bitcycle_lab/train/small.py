"""Runs of a second, and what must be equal between a run and its interrupted twin."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from bitcycle_lab.tasks import DataConfig, ModelConfig
from bitcycle_lab.train import (
    CheckpointConfig,
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
    TrackingConfig,
    loop,
)
from bitcycle_lab.train.session import Session


class Killed(BaseException):
    """Stands for SIGKILL where a process of its own would take seconds to start."""


def small(output: Path, **changes: Any) -> RunConfig:
    """12 steps of the digits MLP, 3 to 8 bits, with everything written often; 4 bits if shorter."""
    forward = "CR:3-8:2" if (changes.get("steps") or 12) >= 12 else 4
    settings: dict[str, Any] = {
        "name": "small",
        "model": ModelConfig(name="digits_mlp", options={"width": 16}),
        "data": DataConfig(subset=160, batch_size=32, eval_batch_size=128),
        "optimizer": OptimizerConfig(lr=0.05, momentum=0.9, weight_decay=1e-4),
        "lr": LrConfig(policy="step", milestones=(0.5,)),
        "precision": PrecisionConfig(forward=forward, backward=6),
        "eval": EvalConfig(every=4),
        "checkpoint": CheckpointConfig(every=3),
        "tracking": TrackingConfig(log_every=2, tensorboard=False),
        "steps": 12,
        "threads": 1,
        "output": str(output),
    }
    return RunConfig(**{**settings, **changes})


def convnet(output: Path, **changes: Any) -> RunConfig:
    """The same for a narrow convnet."""
    return small(output, model=ModelConfig(name="digits_convnet", options={"width": 4}), **changes)


def float32() -> PrecisionConfig:
    """No conversion."""
    return PrecisionConfig()


def write_words(folder: Path, *, seed: int = 0) -> Path:
    """A text in the layout of Penn Treebank: enough for four streams and several epochs."""
    generator = random.Random(seed)
    words = [f"w{i}" for i in range(20)]
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in (("train", 400), ("valid", 80), ("test", 60)):
        lines = [" ".join(generator.choices(words, k=10)) for _ in range(number // 10)]
        (folder / f"ptb.{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def lstm(output: Path, root: Path, **changes: Any) -> RunConfig:
    """A recurrent language model with dropout, whose state is carried from step to step."""
    options = {"embedding_dim": 8, "hidden_dim": 8, "dropout": 0.5}
    settings: dict[str, Any] = {
        "task": "language",
        "model": ModelConfig(name="lstm_lm", options=options),
        "data": DataConfig(name="ptb", root=str(root), batch_size=4, eval_batch_size=4,
                           sequence_length=5, cache_dir=str(root / "cache")),
        "precision": PrecisionConfig(forward="CR:3-8:2", backward=6, only=("decoder",)),
        "optimizer": OptimizerConfig(lr=0.5, momentum=0.0),
    }  # fmt: skip
    return small(output, **{**settings, **changes})


def folder_of(config: RunConfig) -> Path:
    return Path(config.output) / config.run_name


def kill_before_step(patch: pytest.MonkeyPatch, step: int) -> None:
    """The run dies when it is about to take this 0-based step."""
    original = loop.train_step

    def dying(session: Session, micro_batches: list[Any]) -> None:
        if session.step == step:
            raise Killed
        original(session, micro_batches)

    patch.setattr(loop, "train_step", dying)


def metrics_of(directory: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without the time they took."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def traces(directory: Path) -> dict[str, Any]:
    """All that two equal runs have in common: result, metrics, and every byte of the final state.

    Left out are the seconds it took and where it was written.
    """
    result = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    del result["seconds"]
    checkpoints = directory / "checkpoints"
    last = checkpoints / f"step-{result['steps']:08d}"
    state: dict[str, Any] = {}
    for file in [*last.iterdir(), *(checkpoints / "best").glob("model.*")]:
        if file.name == "run.json":
            state["run"] = {**json.loads(file.read_text(encoding="utf-8")), "seconds": None}
        elif file.name == "config.json":
            state["config"] = {**json.loads(file.read_text(encoding="utf-8")), "output": None}
        elif file.name != "manifest.json":
            state[f"{file.parent.name}/{file.name}"] = file.read_bytes()
    return {"result": result, "metrics": metrics_of(directory), **state}


def files_below(directory: Path) -> dict[str, bytes]:
    """Every file and its content, to tell whether anything was written."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
