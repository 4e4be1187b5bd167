"""The data file of a study: `gather` writes it from the runs, `restore` reads it without them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from bitcycle.files import write_text
from bitcycle_lab.recipes import Published
from bitcycle_lab.study.results import MethodResult, RunStatus, State, StudyResult
from bitcycle_lab.study.study import Method, Study
from bitcycle_lab.study.summary import published_values
from bitcycle_lab.tasks import TASKS
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.config_file import build_config, to_dict
from bitcycle_lab.train.config_id import config_id
from bitcycle_lab.train.result import RunResult
from bitcycle_lab.train.run_directory import MACHINE, RunDirectory

Data = Mapping[str, Any]

DEFAULT = RunConfig(steps=1).with_backward()  # a run has a length, which has no default
NOT_SETTINGS = ("seed", "output", "tracking", "checkpoint", "data.root", "data.cache_dir")
MOST_POINTS = 12  # of a curve
WIDTH = 160  # of a line of a data file
DAMAGE = (KeyError, TypeError, IndexError, AttributeError, ValueError, ArithmeticError)


# -- from runs to data ----------------------------------------------------------------------------


def gather(result: StudyResult) -> dict[str, Any]:
    """A study, its methods and every run as plain data."""
    study, machines, methods = result.study, list[dict[str, Any]](), []
    for row in result.methods:
        method = row.method
        entry = {
            "label": method.label,
            "group": method.group,
            "place": None if method.place is None else list(method.place),
            "at": method.at,
            "id": config_id(method.config),
            "settings": to_settings(method.config),
            "published": _gather_published(method),
            "runs": [_gather_run(run, machines) for run in row.runs],
        }
        methods.append({key: value for key, value in entry.items() if value is not None})
    return {
        "kind": "study",
        "name": study.name,
        "description": study.description,
        "question": study.kind,
        "scale": study.scale,
        "baseline": study.baseline,
        "margin": study.margin,
        "seeds": list(study.seeds),
        "notes": list(study.notes),
        "machines": machines,
        "methods": methods,
    }


def _gather_published(method: Method) -> dict[str, Any] | None:
    """The published value of a method, if there is exactly one; group: what it belongs to."""
    found = published_values(method, TASKS[method.config.task].metric)
    if len(found) != 1:
        return None
    return {"value": found[0].value, "where": found[0].where, "group": method.group}


def _gather_run(run: RunStatus, machines: list[dict[str, Any]]) -> dict[str, Any]:
    """One run. machine: an index into the list of machines."""
    found: dict[str, Any] = {"seed": run.seed, "state": run.state}
    if run.error is not None:
        found["error"] = without_paths(run.error)
    result = run.result
    if result is None:
        return found
    directory = RunDirectory(run.directory)
    environment = directory.read_environment()
    machine = {key: environment[key] for key in MACHINE if key in environment}
    if machine not in machines:
        machines.append(machine)
    return {
        **found,
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
        **thin_curve(directory.read_metrics(), result.metric),
        **last_training(directory.read_metrics(), result.metric),
    }


def last_training(lines: Sequence[Data], metric: str) -> dict[str, float | str]:
    """The metric on training batches in the last twentieth of the steps, with augmentation.

    >>> lines = [{"step": s, "kind": "train", "m": s / 100} for s in range(50, 2001, 50)]
    >>> last_training(lines, "m")
    {'training': 19.75}
    """
    found = [line for line in lines if line.get("kind") == "train" and metric in line]
    last = [line[metric] for line in found if line["step"] > 0.95 * found[-1]["step"]]
    return {"training": rounded(fmean(last), 5)} if last else {}


def thin_curve(lines: Sequence[Data], metric: str) -> dict[str, Any]:
    """The evaluations in the run as [step, value]: every k-th, and always the last.

    Those on test data, or on another split if it was evaluated more often.

    >>> lines = [{"step": s, "kind": "eval", "split": "test", "m": s / 3} for s in range(1, 26)]
    >>> [step for step, _ in thin_curve(lines, "m")["curve"]]
    [1, 4, 7, 10, 13, 16, 19, 22, 25]
    """
    splits: dict[str, list[list[Any]]] = {"test": []}
    for line in lines:
        if line.get("kind") == "eval" and metric in line:
            splits.setdefault(line["split"], []).append([line["step"], rounded(line[metric], 5)])
    split, points = max(splits.items(), key=lambda found: len(found[1]))
    stride = -(-len(points) // MOST_POINTS) or 1
    curve = {"curve": points[(len(points) - 1) % stride :: stride]}
    return curve if split == "test" else {**curve, "curve_split": split}


def to_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that are not the default, without seed and folders.

    >>> to_settings(RunConfig(name="a", steps=10, output="elsewhere"))
    {'name': 'a', 'steps': 10}
    """
    return _differing(to_dict(config.with_backward()), {**to_dict(DEFAULT), "steps": None}, "")


def _differing(own: Data, default: Data, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in own.items():
        if prefix + key in NOT_SETTINGS or value == default.get(key):
            continue
        is_section = isinstance(value, Mapping) and not prefix
        found[key] = _differing(value, default[key], f"{key}.") if is_section else value
    if prefix == "model." and isinstance(found.get("path"), str):
        found["path"] = Path(found["path"]).name
    return found


def without_paths(text: str) -> str:
    """An error message without the folders of the machine.

    >>> without_paths("OSError: no room in /home/me/runs/a (log: /home/me/runs/studies/a.txt)")
    'OSError: no room in a'
    """
    text = re.sub(r" \(log: .*\)$", "", text)
    text = re.sub(r"(?<![\w.])(?:~|\.\.?)?/(?:[^\s/'\"]+/)*([^\s/'\"]*)", r"\1", text)
    return text if len(text) <= 200 else f"{text[:200]}..."


def merge(old: Data, new: Data) -> dict[str, Any]:
    """The new data, with what only the old data have: a study can be run in parts.

    Runs are matched by the id of their configuration and their seed. A new result replaces an old
    one, a new failure an old failure; a run that is missing or not finished replaces nothing.
    """
    machines = [*new["machines"]]

    def moved(run: Data) -> Data:
        if "machine" not in run:
            return run
        machine = old["machines"][run["machine"]]
        if machine not in machines:
            machines.append(machine)
        return {**run, "machine": machines.index(machine)}

    rank = {"done": 2, "failed": 1}
    before = {method["id"]: method for method in old["methods"]}
    methods = []
    for method in new["methods"]:
        known = before.get(method["id"], {"runs": []})
        runs = {run["seed"]: run for run in method["runs"]}
        for run in known["runs"]:
            own = runs.get(run["seed"], {"state": None})
            if rank.get(run["state"], 0) > rank.get(own["state"], 0):
                runs[run["seed"]] = moved(run)
        methods.append({**known, **method, "runs": [runs[seed] for seed in sorted(runs)]})
    seeds = {run["seed"] for method in methods for run in method["runs"]}
    return {**old, **new, "seeds": sorted({*new["seeds"], *seeds}), "machines": machines,
            "methods": methods}  # fmt: skip


# -- from data to a study -------------------------------------------------------------------------


def restore(data: Data, baseline: str | None = None) -> StudyResult:
    """The study of a data file, compared with its baseline or another method.

    Raises KeyError, ValueError, ... if the file is damaged.
    """
    baseline = baseline or data["baseline"]
    bases = {e["group"]: e.get("published") for e in data["methods"] if e["label"] == baseline}
    methods = [_restore_method(e, bases.get(e["group"])) for e in data["methods"]]
    study = Study(
        name=data["name"],
        description=data["description"],
        methods=tuple(methods),
        seeds=tuple(data["seeds"]),
        baseline=baseline,
        margin=data.get("margin"),
        kind=data["question"],
        scale=data["scale"],
        notes=tuple(data["notes"]),
    )
    rows = [
        MethodResult(method=method, runs=tuple(_restore_run(method, run) for run in entry["runs"]))
        for method, entry in zip(methods, data["methods"], strict=True)
    ]
    return StudyResult(study=study, output=Path(), methods=tuple(rows))


def _restore_method(entry: Data, base: Data | None) -> Method:
    """A method; its published value only if that of the baseline is of the same network."""
    config = build_config(entry["settings"]).with_backward()
    cell = entry.get("published")
    published: tuple[Published, ...] = ()
    if cell is not None and base is not None and cell["group"] == base["group"]:
        metric = TASKS[config.task].metric
        published = (Published(where=cell["where"], metric=metric, value=cell["value"], unit=""),)
    return Method(
        label=entry["label"],
        config=config,
        group=entry["group"],
        place=tuple(entry["place"]) if "place" in entry else None,
        published=published,
        at=entry.get("at"),
    )


def _restore_run(method: Method, run: Data) -> RunStatus:
    if run["state"] not in get_args(State):
        raise ValueError(f"a run has the state {run['state']!r}; known: {get_args(State)}")
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
            cost={"bitops": float(run["bitops"]), "relative_to_float32": float(run["of_float32"])},
            steps=run["steps"],
            seconds=float(run["seconds"]),
            kernels={str(i): name for i, name in enumerate(run["kernels"])},
            weights_sha256=run["weights"],
            directory="",
        )
    return RunStatus(
        method=method,
        config=config,
        directory=Path(config.run_name),
        state=run["state"],
        result=result,
        error=run.get("error"),
    )


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


def add(path: Path, data: Data) -> None:
    """Write the data file of a study, merged with the one that is there."""
    with name_file_in_errors(path):
        text = to_json(merge(read_data(path), data) if path.exists() else data)
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
