"""`export_run`: a finished run as a file, checked against the run's own evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from bitcycle.assign import at_precision, get_precision, quantized_layers
from bitcycle.export.check import Bits, Check, compare
from bitcycle.export.load import SUFFIXES, load_exported
from bitcycle.export.model import ExportedFile, Target, check_target, export_model
from bitcycle.precision import Precision
from bitcycle.tasks import Split
from bitcycle.train.checkpoint import CheckpointError, Checkpoints
from bitcycle.train.configfile import override
from bitcycle.train.directory import RunDirectory
from bitcycle.train.evaluate import describe_precision, eval_precision, is_converted
from bitcycle.train.evaluate_run import check_observed, restore
from bitcycle.train.reproduce import kept_settings
from bitcycle.train.session import Session, build_session


@dataclass(frozen=True, kw_only=True)
class RunExport:
    """The file, the bits it has, the step it is of, and how it compares to the run."""

    file: ExportedFile
    precision: str
    step: int
    check: Check


def export_run(
    run_dir: str | Path,
    *,
    to: Target,
    output: str | Path | None = None,
    precision: str = "high",
    checkpoint: Literal["last", "best"] = "last",
    codes: bool = False,
    overrides: Sequence[str] = (),
) -> RunExport:
    """Write RUN/export/model.onnx (or .safetensors, .pt), then read it back and compare.

    The validation split is compared, or the test split of a run without one. `--to torch` has no
    activation grids and is compared to the run at its weights' bits.
    """
    directory = RunDirectory(run_dir)
    default = directory.path / "export" / f"model{SUFFIXES.get(to, '')}"
    path = check_target(to, output or default, codes)
    config = override(directory.read_config(), overrides)
    checkpoints = Checkpoints(directory.checkpoints)
    loaded = checkpoints.load_newest() if checkpoint == "last" else checkpoints.load_best()
    if loaded is None:
        raise CheckpointError(f"{directory.path} has no {checkpoint} checkpoint to export")
    step, state = loaded
    with kept_settings():
        session = build_session(config, directory.path)
        restore(session, step, state)
        bits = eval_precision(precision, session.bits)
        check_observed(session.model, bits)
        session.model.cpu()
        session.task.to("cpu")
        source = {"run": config.name, "step": step, "model": config.model.name}
        file, check = _export(session, bits, to, path, codes, source)
    return RunExport(
        file=file, precision=describe_precision(session.model, bits), step=step, check=check
    )


def _export(
    session: Session, bits: Bits, to: Target, path: Path, codes: bool, source: dict[str, object]
) -> tuple[ExportedFile, Check]:
    task, model = session.task, session.model
    split: Split = "validation" if task.has_validation else "test"
    batch = next(iter(task.eval_batches(split)))
    inputs = task.example_inputs(batch.to("cpu"))
    if not is_converted(model):
        file = export_model(model, inputs, to=to, path=path, codes=codes, source=source)
    else:
        with at_precision(model, bits):  # type: ignore[arg-type]
            file = export_model(model, inputs, to=to, path=path, codes=codes, source=source)
    exported = load_exported(path) if to == "onnx" else load_exported(path, task.build_model())
    assert isinstance(exported, nn.Module)
    if to == "torch" and is_converted(model):
        bits = _weights_only(model, bits)
    return file, compare(task, model, bits, exported, split)


def _weights_only(model: nn.Module, bits: Bits) -> Bits:
    with at_precision(model, bits):  # type: ignore[arg-type]
        now = get_precision(model)
        each = {entry.name: layer.precision for entry, layer in quantized_layers(model)}
    if isinstance(now, Precision):
        return now.replace(act=None)
    return {name: precision.replace(act=None) for name, precision in each.items()}
