"""The data file of a study: `gather` writes it from the runs, `restore` reads it without them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bitcycle.files import write_text
from bitcycle_lab.recipes import Published
from bitcycle_lab.study.results import MethodResult, RunStatus, StudyResult
from bitcycle_lab.study.study import Method
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.tasks import TASKS
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.config_file import build_config, to_dict
from bitcycle_lab.train.config_id import config_id, drop_defaults
from bitcycle_lab.train.evaluate import evaluate_run
from bitcycle_lab.train.result import RunResult
from bitcycle_lab.train.run_directory import MACHINE, RunDirectory

Data = Mapping[str, Any]

DEFAULT = RunConfig(steps=1).with_backward()  # a run has a length, which has no default
WIDTH = 160  # of a line of a data file
DAMAGE = (KeyError, TypeError, IndexError, AttributeError, ValueError, ArithmeticError)


# -- from runs to data ----------------------------------------------------------------------------


def gather(result: StudyResult, *, with_train: bool = False) -> dict[str, Any]:
    """The methods of a study and their runs that have ended as plain data.

    with_train: evaluate the last weights of each run on its training data, too.
    """
    machines: list[dict[str, Any]] = []
    methods = [
        {
            "label": row.method.label,
            "group": row.method.group,
            "id": config_id(row.method.config),
            "settings": to_settings(row.method.config),
            "runs": [
                _gather_run(run, machines, with_train)
                for run in row.runs
                if run.error or run.result
            ],
        }
        for row in result.methods
    ]
    return {"kind": "study", "name": result.study.name, "machines": machines, "methods": methods}


def _gather_run(run: RunStatus, machines: list[dict[str, Any]], with_train: bool) -> dict[str, Any]:
    """One run. machine: an index into the list of machines."""
    if run.result is None:
        return {"seed": run.seed, "state": "failed"}
    result = run.result
    environment = RunDirectory(run.directory).read_environment()
    machine = {key: environment[key] for key in MACHINE if key in environment}
    if machine not in machines:
        machines.append(machine)
    return {
        "seed": run.seed,
        "state": run.state,
        "final": {name: rounded(value, 12) for name, value in result.final.items()},
        "eval_precision": result.eval_precision,
        "bitops": result.cost["bitops"],
        "of_float32": rounded(result.cost.get("relative_to_float32") or 0.0, 6),
        "steps": result.steps,
        "seconds": rounded(result.seconds, 6),
        "kernels": sorted(set(result.kernels.values())),
        "weights": result.weights_sha256[:16],
        "machine": machines.index(machine),
        "threads": run.config.threads or environment.get("num_threads"),
        "curve": _curve(run.metrics, result.metric),
        **({"train": _train_metrics(run)} if with_train else {}),
    }


def _curve(lines: list[dict[str, Any]], metric: str) -> list[list[float | str]]:
    """[step, metric] of every evaluation on the test split during the run."""
    tests = [line for line in lines if line.get("kind") == "eval" and line["split"] == "test"]
    return [[line["step"], rounded(line[metric], 5)] for line in tests if metric in line]


def _train_metrics(run: RunStatus) -> dict[str, Any]:
    """On training data without augmentation, at the bits of the run's final values."""
    metrics = evaluate_run(run.directory, split="train")["metrics"]
    return {name: rounded(value, 8) for name, value in metrics.items()}


def to_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that are not the default, without seed and folders.

    >>> to_settings(RunConfig(name="a", steps=10, output="elsewhere"))
    {'name': 'a', 'steps': 10}
    """
    own = replace(
        config.with_backward(),
        seed=DEFAULT.seed,
        output=DEFAULT.output,
        tracking=DEFAULT.tracking,
        checkpoint=DEFAULT.checkpoint,
        data=replace(config.data, root=DEFAULT.data.root, cache_dir=DEFAULT.data.cache_dir),
        model=replace(config.model, path=config.model.path and Path(config.model.path).name),
    )
    settings = drop_defaults(to_dict(own), {**to_dict(DEFAULT), "steps": None})
    if "precision" in settings:  # where it is not given, it follows the forward bits
        settings["precision"]["backward"] = to_dict(own)["precision"]["backward"]
    return settings


def merge(old: Data, new: Data, *, replaces: bool = False) -> dict[str, Any]:
    """Both: methods by group and label, in the order of the new data; their runs by seed.

    Raises ValueError if a method has other settings now, or a seed another result, unless the new
    one `replaces` it.
    """
    machines = [*old["machines"]]
    machines += [each for each in new["machines"] if each not in machines]
    places = [machines.index(each) for each in new["machines"]]
    methods = {_key(method): method for method in (*new["methods"], *old["methods"])}
    for method in new["methods"]:
        before = methods[_key(method)]
        moved = [
            {**run, "machine": places[run["machine"]]} if "machine" in run else run
            for run in method["runs"]
        ]
        runs = _merge_runs(before, {**method, "runs": moved}, replaces)
        methods[_key(method)] = {**before, **method, "runs": runs}
    return {**old, **new, "machines": machines, "methods": [*methods.values()]}


def _merge_runs(old: Data, new: Data, replaces: bool) -> list[Data]:
    """The runs of a method, every seed once. A failure never takes the place of a result."""
    name = ", ".join(filter(None, _key(new)))
    is_other = _training_id(old) != _training_id(new)
    if is_other and not replaces:
        raise ValueError(f"{name} had other settings, {old['settings']}; --replace drops its runs")
    runs = {} if is_other else {run["seed"]: run for run in old["runs"]}
    for run in new["runs"]:
        known = runs.get(run["seed"], run)
        is_same = all(known.get(key) == run.get(key) for key in ("final", "weights"))
        if known["state"] == "done" and is_same:
            runs[run["seed"]] = {**known, **run}
        elif known["state"] == "failed" or (run["state"] == "done" and replaces):
            runs[run["seed"]] = run
        elif run["state"] == "done":
            raise ValueError(
                f"{name}, seed {run['seed']} has another result; --replace takes yours"
            )
    return [runs[seed] for seed in sorted(runs)]


def _key(method: Data) -> tuple[str, str]:
    return method["group"], method["label"]


def _training_id(method: Data) -> str:
    """Equal for methods that compute the same, with whatever kernel and threads."""
    config = build_config(method["settings"]).with_backward()
    precision = replace(config.precision, kernel=DEFAULT.precision.kernel)
    return config_id(replace(config, precision=precision, threads=None))


# -- from data to a study -------------------------------------------------------------------------


def restore(data: Data, baseline: str | None = None) -> StudyResult:
    """The study of a data file, compared with its baseline or another method.

    Raises KeyError, ValueError, ... if the file is damaged.
    """
    study = find_study(data["name"])
    study = replace(study, baseline=baseline or study.baseline)
    entries = {_key(entry): entry for entry in data["methods"]}
    if others := sorted(set(entries) - {(method.group, method.label) for method in study.methods}):
        raise ValueError(f"the study {study.name} has no method {', '.join(others[0])}")
    bases = {group: entry for (group, label), entry in entries.items() if label == study.baseline}
    rows = []
    for method in study.methods:
        if (entry := entries.get((method.group, method.label))) is not None:
            method = _with_published(method, entry, bases.get(method.group, {}))
            runs = tuple(_restore_run(method, run) for run in entry["runs"])
            rows.append(MethodResult(method=method, runs=runs))
    study = replace(study, methods=tuple(row.method for row in rows))
    return StudyResult(study=study, output=Path(), methods=tuple(rows))


def _with_published(method: Method, entry: Data, base: Data) -> Method:
    """The method with the published value of its entry, if it is of the baseline's network."""
    cell = entry.get("published")
    if cell is None or cell["group"] != base.get("published", {}).get("group"):
        return method
    metric = TASKS[method.config.task].metric
    own = Published(where=cell["where"], metric=metric, value=cell["value"], unit="")
    return replace(method, published=(own,))


def _restore_run(method: Method, run: Data) -> RunStatus:
    config, result = replace(method.config, seed=run["seed"]), None
    if run["state"] == "done":
        metric = TASKS[config.task].metric
        final = {name: float(value) for name, value in run["final"].items()}
        result = RunResult(
            name=config.name,
            seed=run["seed"],
            metric=metric,
            final={metric: final[metric], **final},
            best=None,
            swa=None,
            eval_precision=run["eval_precision"],
            cost={"bitops": float(run["bitops"])},
            steps=run["steps"],
            seconds=float(run["seconds"]),
            kernels={},
            weights_sha256=run["weights"],
            directory="",
        )
    elif run["state"] != "failed":
        raise ValueError(f"a run has the state {run['state']!r}; known: done, failed")
    return RunStatus(method=method, config=config, directory=Path(), state=run["state"],
                     result=result)  # fmt: skip


# -- data files -----------------------------------------------------------------------------------


def read_data(path: Path) -> dict[str, Any]:
    """Read a data file; errors name it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no mapping")
    return data


@contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Add the file to errors about its contents."""
    try:
        yield
    except DAMAGE as error:
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: {why}") from None


def add(path: Path, data: Data, *, replaces: bool = False) -> None:
    """Write the data file of a study, merged with the one that is there."""
    with name_file_in_errors(path):
        if path.exists():
            data = merge(read_data(path), data, replaces=replaces)
        text = to_json(data)
        restore(json.loads(text))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def to_json(value: Any, indent: str = "") -> str:
    """JSON with readable diffs: a value that fits a line stands on one.

    >>> print(to_json({"a": [1, 2.5], "b": "x"}), end="")
    {"a": [1, 2.5], "b": "x"}
    """
    end = "" if indent else "\n"
    short = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(indent) + len(short) <= WIDTH or not isinstance(value, dict | list) or not value:
        return short + end
    inner = f"{indent} "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {to_json(part, inner)}" for key, part in value.items()]
    else:
        parts = [to_json(part, inner) for part in value]
    left, right = "{}" if isinstance(value, dict) else "[]"
    return f"{left}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{right}{end}"


def rounded(number: float, digits: int) -> float | str:
    """Round to significant digits; NaN and infinity become text.

    >>> rounded(98.88888888888889, 5), rounded(math.inf, 5)
    (98.889, 'inf')
    """
    return float(f"{number:.{digits}g}") if math.isfinite(number) else str(number)
