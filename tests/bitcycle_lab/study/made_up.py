"""Studies with results that were never trained: every number is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bitcycle_lab.recipes import Published
from bitcycle_lab.study.results import MethodResult, RunStatus, StudyResult
from bitcycle_lab.study.study import Method, Study, StudyRun
from bitcycle_lab.tasks import DataConfig, ModelConfig
from bitcycle_lab.train.config import PrecisionConfig, RunConfig
from bitcycle_lab.train.config_file import to_yaml
from bitcycle_lab.train.result import RunResult, result_json

Values = Mapping[int, float | None]  # seed -> final value; None: the run failed


def config(forward: int | str = 8, **changes: Any) -> RunConfig:
    """240 steps of the digits MLP."""
    settings: dict[str, Any] = {
        "name": f"run-{str(forward).replace(':', '-').replace('@', '-').replace(',', '-')}",
        "model": ModelConfig(name="digits_mlp"),
        "data": DataConfig(),
        "precision": PrecisionConfig(forward=forward, backward=8),
        "steps": 240,
    }
    return RunConfig(**{**settings, **changes})


def method(
    label: str,
    forward: int | str = 8,
    *,
    group: str = "",
    published: Mapping[str, float] | None = None,
    place: tuple[str, str] | None = None,
    at: float | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Method:
    units = {"accuracy": "%", "cost": "GBitOPs", "perplexity": ""}
    return Method(
        label=label,
        config=config(forward, **(changes or {})),
        group=group,
        place=place,
        at=at,
        published=tuple(
            Published(where="CPT Table 2", metric=name, value=value, unit=units[name])
            for name, value in (published or {}).items()
        ),
    )


def result_of(run: StudyRun, directory: Path, value: float, bitops: float) -> RunResult:
    metric = "perplexity" if run.config.task == "language" else "accuracy"
    return RunResult(
        name=run.config.name,
        seed=run.seed,
        metric=metric,
        final={metric: value, "loss": 0.1},
        best=None,
        swa=None,
        eval_precision="FW8/BW8",
        cost={"convention": "exact", "bitops": bitops, "relative_to_static_top": 0.5},
        steps=run.config.steps or 0,
        seconds=1.5,
        kernels={},
        weights_sha256="",
        directory=str(directory),
    )


def study_result(
    entries: Sequence[tuple[Method, Values, float]],
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    output: Path = Path("runs"),
    **changes: Any,
) -> StudyResult:
    """(method, seed -> value, BitOPs of a run) each; a seed that is left out is missing."""
    methods = tuple(m for m, _, _ in entries)
    known = {m.key: (values, bitops) for m, values, bitops in entries}
    settings: dict[str, Any] = {"name": "made-up", "description": "Numbers of no training."}
    study = Study(methods=methods, seeds=seeds, **{**settings, **changes})
    states: dict[str, list[RunStatus]] = {m.key: [] for m in methods}
    for run in study.runs(str(output)):
        values, bitops = known[run.method.key]
        directory = output / run.config.run_name
        value = values.get(run.seed)
        status: dict[str, Any]
        if value is not None:
            done = result_of(run, directory, value, bitops)
            status = {"state": "done", "result": done}
        elif run.seed in values:
            status = {"state": "failed", "error": "loss is nan"}
        else:
            status = {"state": "missing"}
        own = RunStatus(method=run.method, config=run.config, directory=directory, **status)
        states[run.method.key].append(own)
    return StudyResult(
        study=study,
        output=output,
        methods=tuple(MethodResult(method=m, runs=tuple(states[m.key])) for m in methods),
    )


Kernel = tuple[str, str | None]  # "native" or "native simulate", and the instruction set


def kernel_study(kernels: Mapping[str, Sequence[Kernel]], **changes: Any) -> StudyResult:
    """A study whose runs had these kernels: method, or group: method -> kernel by seed.

    "native simulate" is the kernel of the first layer and of the two others; "" is float32.
    """
    entries = []
    for key in kernels:
        group, _, label = key.rpartition(": ")
        entries.append((method(label, group=group), {0: 97.0, 1: 98.0, 2: 99.0}, 1e9))
    result = study_result(entries, **changes)
    methods = [
        replace(each, runs=tuple(map(_with_kernel, each.runs, kernels[each.method.key])))
        for each in result.methods
    ]
    return replace(result, methods=tuple(methods))


def _with_kernel(run: RunStatus, kernel: Kernel) -> RunStatus:
    names, instruction_set = kernel[0].split(), kernel[1]
    layers = dict(zip(("conv", "fc1", "fc2"), [*names[:1], *names[-1:] * 2], strict=False))
    assert run.result is not None
    result = replace(run.result, kernels=layers, instruction_set=instruction_set)
    return replace(run, result=result)


def write_runs(result: StudyResult) -> None:
    """The folders that such runs would have left."""
    for row in result.methods:
        for run in row.runs:
            if run.result is not None:
                write_run(run.config, run.result)


def write_run(
    config: RunConfig, result: RunResult | None, lines: list[dict[str, Any]] | None = None
) -> Path:
    """config.yaml, metrics.jsonl and, for a finished run, result.json."""
    folder = Path(config.output) / config.run_name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    text = "".join(json.dumps(line) + "\n" for line in lines or [])
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    if result is not None:
        stored = json.dumps(result_json(replace(result, directory=str(folder))))
        (folder / "result.json").write_text(stored, encoding="utf-8")
    return folder
