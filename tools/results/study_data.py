"""The data file of a study: `gather` writes it from the runs, `restore` reads it without them."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from bitcycle.analysis.config_id import config_id
from bitcycle.recipes import list_recipes, recipe
from bitcycle.recipes.base import base_of
from bitcycle.study.catalogue.methods import group, label, network
from bitcycle.study.results import MethodResult, RunStatus, State, StudyResult
from bitcycle.study.study import STUDIES, Method, Study, StudyOptions
from bitcycle.study.summary import published_value
from bitcycle.train.config import RunConfig
from bitcycle.train.config_file import to_dict
from bitcycle.train.result import RunResult
from bitcycle.train.run_directory import MACHINE, RunDirectory
from tools.results.commands import run_command, without_paths
from tools.results.page import Data, rounded

DEFAULT = RunConfig(steps=1).with_backward()  # a run has a length, which has no default
NOT_SETTINGS = ("seed", "output", "tracking", "checkpoint", "data.root", "data.cache_dir")
MOST_POINTS = 12  # of a curve
REFERENCE = "table2"  # whose cells small studies without a table of their own stand for
PREFIX = "cifar100-resnet74-"  # CPT's main network, whose small twins are on digits
Curves = dict[int, dict[int, float]]  # seed -> step -> value
IDENTITY = re.compile(r"-[0-9a-f]{10}$")  # that a run's name ends with


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """A study with its results and the rest of its file. Dictionaries are by key of a method.

    published: the cell of a paper's table (value, cost, where, group, training). curves: the metric
    in the run, on the data of curve_split.
    """

    result: StudyResult
    command: str
    machines: Sequence[Data]
    threads: Sequence[int]
    ids: Mapping[str, str]
    published: Mapping[str, Data]
    curves: Mapping[str, Curves]
    curve_split: str

    @property
    def name(self) -> str:
        """The name of the study, its page and its file."""
        return self.result.study.name


# -- gathering ----------------------------------------------------------------------------------


def gather(result: StudyResult, options: StudyOptions) -> dict[str, Any]:
    """A study, its methods and every run as plain data."""
    study, machines = result.study, list[dict[str, Any]]()
    methods = []
    cells = published_cells(study)
    for row in result.methods:
        method = row.method
        entry = {
            "label": method.label,
            "group": method.group,
            "place": None if method.place is None else list(method.place),
            "at": method.at,
            "id": config_id(method.config),
            "settings": to_settings(method.config),
            "published": cells.get(method.key),
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
        "seeds": list(study.seeds),
        "notes": list(study.notes),
        "commands": [run_command(study, options)],
        "machines": machines,
        "methods": methods,
    }


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
        "final": {name: rounded(value) for name, value in result.final.items()},
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
    }


def merge(old: Data, new: Data) -> dict[str, Any]:
    """The new data, with the old runs that it does not have: a study can be run in parts.

    Runs are matched by the id of their configuration and their seed. A new result or failure
    replaces an old one; a run that is missing or not finished does not.
    """
    machines = [*new["machines"]]
    ended: dict[str, dict[int, Data]] = {}
    for method in old["methods"]:
        runs = {run["seed"]: run for run in method["runs"] if run["state"] in ("done", "failed")}
        ended.setdefault(method["id"], {}).update(runs)

    def moved(run: Data) -> Data:
        if "machine" not in run:
            return run
        machine = old["machines"][run["machine"]]
        if machine not in machines:
            machines.append(machine)
        return {**run, "machine": machines.index(machine)}

    methods = []
    for method in new["methods"]:
        before = ended.get(method["id"], {})
        runs = {run["seed"]: run for run in method["runs"]}
        runs |= {
            seed: moved(run)
            for seed, run in before.items()
            if seed not in runs or runs[seed]["state"] not in ("done", "failed")
        }
        methods.append({**method, "runs": [runs[seed] for seed in sorted(runs)]})
    seeds = {run["seed"] for method in methods for run in method["runs"]}
    return {**new, "seeds": sorted({*new["seeds"], *seeds}), "machines": machines,
            "methods": methods}  # fmt: skip


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
        found["path"] = found["path"].rstrip("/").rpartition("/")[2]
    return found


# -- published cells ----------------------------------------------------------------------------


def published_cells(study: Study) -> dict[str, dict[str, Any]]:
    """Key of a method -> its cell of a paper's table."""
    found: dict[str, dict[str, Any]] = {}
    for method, cell in _twins(study):
        metric = study.metric(method.group)
        value = published_value(cell, metric)
        if value is not None:
            found[method.key] = {
                "value": value,
                "cost": published_value(cell, "cost"),
                "where": next(p.where for p in cell.published if p.metric == metric),
                "group": group(cell.config),
                "training": training(cell.config),
            }
    return found


def _twins(study: Study) -> Iterator[tuple[Method, Method]]:
    """Every method with its published one; a small method with its full-size one."""
    if study.scale == "full":
        yield from ((method, method) for method in study.methods)
        return
    table = study.name.removesuffix("-small")
    has_table = table in STUDIES.names() and table != study.name
    cells = STUDIES[table if has_table else REFERENCE]().methods
    for method in study.methods:
        config, metric = method.config, study.metric(method.group)
        known = [
            cell
            for cell in cells
            if published_value(cell, metric) is not None and cell.config.task == config.task
        ]
        if has_table and any(network(cell.config) == network(config) for cell in known):
            known = [cell for cell in known if network(cell.config) == network(config)]
        twin = PREFIX + config.name.removeprefix("digits-")
        alike = [cell for cell in known if cell.config.name == twin]
        alike = alike or [cell for cell in known if label(cell.config) == label(config)]
        if alike:
            yield method, max(alike, key=partial(_similarity, config))


def _similarity(own: RunConfig, cell: Method) -> int:
    """Prefers the same data, then the same model, then CPT's main network."""
    return (
        4 * (cell.config.data.name == own.data.name)
        + 2 * (cell.config.model.name == own.model.name)
        + cell.config.name.startswith((PREFIX, PREFIX.replace("100", "10")))
    )


def training(config: RunConfig) -> str:
    """Length, batch size and share of the data.

    >>> training(recipe("cifar100-resnet74-static-8-8")), training(recipe("cora-gcn-static-8-8"))
    ('64,000 steps of 128', '200 steps of the whole graph')
    """
    length = f"{config.steps:,} steps" if config.steps is not None else f"{config.epochs:g} epochs"
    if config.task == "nodes":
        return f"{length} of the whole graph"
    size, subset = config.data.batch_size * config.accumulate, config.data.subset
    share = f"{subset:,}" if isinstance(subset, int) else f"{100 * (subset or 1):g} % of the"
    return f"{length} of {size}" + (f" on {share} training samples" if subset else "")


def recipe_of(config: RunConfig) -> str:
    """The recipe that trains this run, with the options that it needs; else empty.

    >>> recipe_of(recipe("digits-cpt-3-8-8"))
    'digits-cpt-3-8-8'
    >>> recipe_of(replace(recipe("digits-cpt-3-8-8"), steps=30))
    'digits-cpt-3-8-8 --steps 30'
    """
    name = IDENTITY.sub("", config.name)
    known = {info.name for info in list_recipes()}
    base = name if name in known else base_of(name)
    if base is None:
        return ""
    own, other = (_dotted(to_dict(each.with_backward())) for each in (config, recipe(base)))
    words = [base]
    for key, value in own.items():
        if not key.startswith((*NOT_SETTINGS, "name", "threads")) and value != other.get(key):
            words += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    return shlex.join(words)


def _dotted(settings: Data, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value and "*" not in value:  # layer patterns are a value
            found |= _dotted(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


# -- restoring ----------------------------------------------------------------------------------


def restore(data: Data) -> StudyData:
    """The study of a data file. Raises KeyError, ValueError, ... if the file is damaged."""
    entries = data["methods"]
    methods = tuple(
        Method(
            label=entry["label"],
            config=from_settings(entry["settings"]),
            group=entry["group"],
            place=tuple(entry["place"]) if "place" in entry else None,
            at=entry.get("at"),
        )
        for entry in entries
    )
    study = Study(
        name=data["name"],
        description=data["description"],
        methods=methods,
        seeds=tuple(data["seeds"]),
        baseline=data["baseline"],
        kind=data["question"],
        scale=data["scale"],
        notes=tuple(data["notes"]),
    )
    rows = tuple(
        MethodResult(
            method=method, runs=tuple(_restore_run(study, method, run) for run in entry["runs"])
        )
        for method, entry in zip(methods, entries, strict=True)
    )
    keyed = {method.key: entry for method, entry in zip(methods, entries, strict=True)}
    runs = [run for entry in entries for run in entry["runs"]]
    splits = Counter(run.get("curve_split", "test") for run in runs if run.get("curve"))
    split = splits.most_common(1)[0][0] if splits else "test"
    return StudyData(
        result=StudyResult(study=study, output=Path(), methods=rows),
        command=data["commands"][0],
        machines=data["machines"],
        threads=sorted({run["threads"] for run in runs if "threads" in run}),
        ids={key: entry["id"] for key, entry in keyed.items()},
        published={key: e["published"] for key, e in keyed.items() if "published" in e},
        curves={key: curves_of(entry, split) for key, entry in keyed.items()},
        curve_split=split,
    )


def curves_of(entry: Data, split: str = "test") -> Curves:
    """The curves of a method's finished runs that were evaluated on this split."""
    return {
        run["seed"]: {step: float(value) for step, value in run["curve"]}
        for run in entry["runs"]
        if run["state"] == "done" and run["curve"] and run.get("curve_split", "test") == split
    }


def _restore_run(study: Study, method: Method, run: Data) -> RunStatus:
    if run["state"] not in get_args(State):
        raise ValueError(f"a run has the state {run['state']!r}; known: {get_args(State)}")
    config = replace(method.config, seed=run["seed"])
    result = None
    if run["state"] == "done":
        metric = study.metric(method.group)
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


def from_settings(settings: Data) -> RunConfig:
    """The configuration of `to_settings`, with the current defaults.

    >>> from_settings({"name": "a", "steps": 10, "precision": {"forward": "CR:3-8:2"}}).steps
    10
    """
    length = {key: settings.get(key) for key in ("steps", "epochs")}  # one of them is there
    return _filled(DEFAULT, {**settings, **length})  # type: ignore[no-any-return]


def _filled(default: Any, settings: Data) -> Any:
    known = {field.name for field in fields(default)}
    changes: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            raise ValueError(f"there is no setting {key!r} in {type(default).__name__}")
        inner = getattr(default, key)
        if is_dataclass(inner):
            changes[key] = _filled(inner, value)
        else:
            changes[key] = tuple(value) if isinstance(value, list) else value
    return replace(default, **changes)
