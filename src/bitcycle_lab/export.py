"""Export a run to a file and compare the file with the run's own evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bitcycle.bits import Bits
from bitcycle.export.model import (
    SUFFIXES,
    ExportedFile,
    Target,
    check_target,
    export_model,
    load_exported,
)
from bitcycle.model_precision import (
    ModelPrecision,
    at_precision,
    get_precision,
    is_converted,
    quantized_layers,
)
from bitcycle.precision import Precision
from bitcycle_lab.tasks import Split, Task
from bitcycle_lab.train.evaluate import (
    check_ranges_observed,
    describe_precision,
    eval_precision,
    evaluate,
    evaluation_mode,
    load_run,
)
from bitcycle_lab.train.run_directory import RunDirectory
from bitcycle_lab.train.session import Session

METRIC_TOLERANCE = 0.01  # relative to the run's metric
MAX_TOLERANCE_BITS = 12  # a float model differs only in the order of sums: by 2**-12
EVAL_NAMES = ("high", "scheduled", "full", "fp32")  # precisions that a float32 run has


@dataclass(frozen=True, kw_only=True)
class RunExport:
    """The exported file of a run: its bits, its step, and the comparison with the run."""

    file: ExportedFile
    precision: str
    step: int
    check: Check

    def __str__(self) -> str:
        file, check = self.file, self.check
        share = file.num_bytes / file.float_bytes
        lines = [
            f"wrote {file.path}: {file.num_bytes:,} bytes, {share:.0%} of float32; "
            f"step {self.step} at {self.precision}"
        ]
        lines += [f"  {count} {text}" for text, count in sorted(file.ways.items())]
        if file.to == "torch" and "=" in self.precision:
            lines.append("  float32 weights and activations: compared so with the run")
        elif file.to == "torch" and "a" in self.precision:
            lines.append("  weights on their grids, activations float32: compared so with the run")
        lines.append(
            f"{check.split} {check.metric}: run {check.run:.4f}, exported {check.exported:.4f}"
        )
        verdict = "within the tolerance" if check.is_within else "NOT within the tolerance"
        lines += [
            f"outputs (largest {check.largest_output:.3g}) differ by {check.mean_difference:.2g} "
            f"on average, at most {check.largest_difference:.2g}:",
            f"  {verdict} of {check.tolerance:.2g} on average and 1 % of the metric",
        ]
        return "\n".join(lines)


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
    """Export a run to RUN/export/model.onnx (or .safetensors, .pt), load it and compare.

    The comparison uses the validation split, or the test split of a run without one. A torch file
    has no activation grids: it is compared with the run at float32 activations.
    """
    directory = RunDirectory(run_dir)
    default = directory.path / "export" / f"model{SUFFIXES.get(to, '')}"
    path = check_target(to, output or default, codes)
    with load_run(run_dir, checkpoint=checkpoint, overrides=overrides) as (session, step):
        if not is_converted(session.model) and (codes or precision not in EVAL_NAMES):
            raise ValueError(
                f"{directory.path} was trained in float32: leave out --precision and --codes"
            )
        bits = eval_precision(precision, session.scheduler)
        check_ranges_observed(session.model, bits)
        session.model.cpu()
        session.task.to("cpu")
        config = session.config
        source = {"run": config.name, "step": step, "model": config.model.name}
        file, check = _export(session, bits, to, path, codes, source)
    return RunExport(
        file=file,
        precision=describe_precision(session.model, bits),
        step=step,
        check=check,
    )


def _export(
    session: Session,
    bits: ModelPrecision,
    to: Target,
    path: Path,
    codes: bool,
    source: dict[str, object],
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


def _weights_only(model: nn.Module, bits: ModelPrecision) -> ModelPrecision:
    with at_precision(model, bits):  # type: ignore[arg-type]
        now = get_precision(model)
        each = {entry.name: layer.precision for entry, layer in quantized_layers(model)}
    if isinstance(now, Precision):
        return _without_activations(now)
    return {name: _without_activations(precision) for name, precision in each.items()}


def _without_activations(bits: Precision) -> Precision:
    """Float32 activations, and float32 weights in place of a format."""
    weight = None if bits.bits["weight"].is_format else bits.weight
    return bits.replace(act=None, weight=weight)


@dataclass(frozen=True, kw_only=True)
class Check:
    """The metric of the run and of its exported file on a split, and how their outputs differ."""

    split: Split
    metric: str
    run: float
    exported: float
    largest_output: float
    largest_difference: float
    mean_difference: float
    tolerance: float  # of the mean difference

    @property
    def is_within(self) -> bool:
        """Whether the exported model agrees with the run within the tolerances."""
        is_near = abs(self.exported - self.run) <= METRIC_TOLERANCE * abs(self.run)
        return is_near and self.mean_difference <= self.tolerance


def compare(
    task: Task, model: nn.Module, bits: ModelPrecision, exported: nn.Module, split: Split
) -> Check:
    """Evaluate the model at these bits and the exported one on the same batches."""
    cpu = torch.device("cpu")
    metrics = evaluate(task, model, split, bits, device=cpu)
    both = _Both(model, exported)
    with evaluation_mode(model, bits), evaluation_mode(exported, _own_bits(exported)):
        steps = 2.0 ** -_fewest_bits(model)
        others = evaluate(task, both, split, Precision(), device=cpu)
    return Check(
        split=split,
        metric=task.metric,
        run=metrics[task.metric],
        exported=others[task.metric],
        largest_output=both.largest_output,
        largest_difference=both.largest,
        mean_difference=both.total / max(both.count, 1),
        tolerance=steps * both.largest_output,
    )


class _Both(nn.Module):
    """Returns the output of the exported model and records its difference to the model's."""

    def __init__(self, model: nn.Module, exported: nn.Module) -> None:
        super().__init__()
        self.models = (model, exported)  # a tuple, so that they are not submodules
        self.largest_output, self.largest, self.total, self.count = 0.0, 0.0, 0.0, 0

    def forward(self, *inputs: Any, **more: Any) -> Any:
        answers = [model(*inputs, **more) for model in self.models]
        expected, output = (_first(answer) for answer in answers)
        difference = (output - expected).abs()
        self.largest_output = max(self.largest_output, float(expected.abs().max()))
        self.largest = max(self.largest, float(difference.max()))
        self.total += float(difference.double().sum())
        self.count += difference.numel()
        return answers[1]


def _first(answer: Any) -> Tensor:
    """The output of a model, without the state of a recurrent one."""
    return answer[0] if isinstance(answer, tuple) else answer  # type: ignore[no-any-return]


def _own_bits(model: nn.Module) -> ModelPrecision:
    return get_precision(model) if is_converted(model) else Precision()


def _fewest_bits(model: nn.Module) -> int:
    """The fewest bits of a weight or an activation, and at most MAX_TOLERANCE_BITS."""
    if not is_converted(model):
        return MAX_TOLERANCE_BITS
    each = [layer.precision for _, layer in quantized_layers(model)]
    bits = [Bits.of(b).cost_bits for p in each for b in (p.weight, p.act) if b is not None]
    return min([MAX_TOLERANCE_BITS, *bits])
