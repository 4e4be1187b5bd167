"""The cost of every study: its runs, their BitOPs, and hours of one core.

Reads no data. A step is timed on random inputs, with part of the batch if that is large, and
multiplied by the number of steps: an order of magnitude.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.analysis.training_spec import TrainingSpec, spec_from_config
from bitcycle.files import write_text
from bitcycle.model_precision import set_precision
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.scheduler import PrecisionScheduler
from bitcycle.study.dry_run import Measure, dry_run
from bitcycle.study.results import read_study
from bitcycle.study.runner import runs_to_train
from bitcycle.study.study import STUDIES, Study
from bitcycle.train.config import RunConfig
from bitcycle.train.run_directory import environment
from bitcycle.warnings import BitcycleWarning
from tools.results.commands import datasets_to_download
from tools.results.page import read_data, rounded, to_json

FEWEST, FEWEST_NODES = 2, 4_096  # samples of the first step that is measured
MORE = 4  # times as many of the next one
ENOUGH = 0.5  # seconds of a step that tells
LONG = 2.0  # of the first one, from where on more samples may not fit into memory
KEYS = ("bitcycle", "torch", "python", "processor", "cpu_capability", "num_cpus")


def write_times(path: Path, names: Iterable[str] | None = None) -> Path:
    """Measure studies, by default all, and add each to the file."""
    torch.set_num_threads(1)  # its processor time is what one core takes
    path.parent.mkdir(parents=True, exist_ok=True)
    found = environment()
    machine = {key: found[key] for key in KEYS}
    known = read_data(path) if path.exists() and names is not None else {}
    if known and known["machine"] != machine:
        raise ValueError(f"{path} is of another machine or version: measure all studies again")
    rows = {row["name"]: row for row in known.get("studies", ())}
    measure = StepTimes()
    for name in STUDIES.names() if names is None else names:
        rows[name] = measure_study(STUDIES[name](), measure)
        data = {
            "kind": "studies",
            "machine": machine,
            "studies": [rows[name] for name in STUDIES.names() if name in rows],
        }
        write_text(path, to_json(data))
    return path


def measure_study(study: Study, measure: Measure) -> dict[str, Any]:
    """The number of runs, their BitOPs and their time."""
    result = read_study(study, Path("nowhere"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BitcycleWarning)  # a run itself will say it
        todo = runs_to_train(result, retry_failed=False)
        estimate = dry_run(result, todo, num_jobs=1, measure=measure)
    return {
        "name": study.name,
        "scale": study.scale,
        "description": study.description,
        "data": list(datasets_to_download(study)),
        "runs": len(estimate.runs),
        "bitops": estimate.bitops,
        "without_bitops": sum(run.bitops is None for run in estimate.runs),
        "seconds": rounded(estimate.seconds, 3),
        "without_time": sum(run.seconds is None for run in estimate.runs),
    }


class StepTimes:
    """(seconds per step, steps) of a configuration; equal models are measured once."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def __call__(self, config: RunConfig) -> tuple[float, int]:
        subject = spec_from_config(config)
        options = {k: v for k, v in subject.options.items() if k != "num_classes"}
        precision = subject.precision
        rules = (precision.quantizer, precision.skip, precision.kernel)
        key = repr((subject.model, options, subject.batch_size, subject.input_shape,
                    "float32" if precision.is_float else rules))  # fmt: skip
        if key not in self._known:
            self._known[key] = step_seconds(subject)
        return self._known[key], subject.total_steps


def step_seconds(subject: TrainingSpec) -> float:
    """Processor time of a training step, extrapolated from growing parts of the batch."""
    kernel = "simulate" if subject.precision.kernel == "auto" else subject.precision.kernel
    subject = replace(subject, device="cpu", precision=replace(subject.precision, kernel=kernel))
    model = subject.build(needs_conversion=False).train()
    if any(isinstance(module, QuantizedLayer) for module in model.modules()):
        roles: dict[str, Any] = subject.precision.schedule_texts(auto=subject.precision.auto_high)
        set_precision(
            model, PrecisionScheduler(model, **roles, total_steps=subject.total_steps).top
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    size = min(FEWEST_NODES if subject.is_graph else FEWEST, subject.batch_size)
    _step(model, subject.inputs(model, size), optimizer)  # the first one also allocates
    points: list[tuple[int, float]] = []
    while True:
        inputs = subject.inputs(model, size)
        began = time.process_time()  # of one thread; a busy machine does not count
        _step(model, inputs, optimizer)
        points.append((size, time.process_time() - began))
        if len(points) == 1 and points[0][1] >= LONG:
            return points[0][1] * subject.batch_size / size
        if size == subject.batch_size or (len(points) > 1 and points[-1][1] >= ENOUGH):
            return extrapolate(points, subject.batch_size)
        size = min(MORE * size, subject.batch_size)


def extrapolate(points: list[tuple[int, float]], size: int) -> float:
    """The line through the last two (samples, seconds), at so many samples.

    >>> extrapolate([(2, 1.5), (8, 3.0)], 128), extrapolate([(2, 1.0), (8, 0.9)], 128)
    (33.0, 0.9)
    """
    (few, less), (many, more) = (points[-2:] * 2)[-2:]
    slope = max(0.0, (more - less) / (many - few)) if many > few else 0.0
    return more + slope * (size - many)


def _step(model: nn.Module, inputs: tuple[Tensor, ...], optimizer: torch.optim.Optimizer) -> None:
    found = model(*inputs)
    output = found[0] if isinstance(found, tuple) else found
    output.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
