"""A study with its results from the file that `gather` made, without any run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from bitcycle.study.base import Method, Study, StudyRun
from bitcycle.study.publish.settings import from_settings
from bitcycle.study.results import MethodResult, RunState, State, StudyResult
from bitcycle.train.result import RunResult

STATES = get_args(State)
CELL = ("value", "cost", "where", "group", "training")  # of a published number


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A published study: its result, and what else its file says.

    published, ids: by the key of a method. curves: by key, a list of (step, value) for each seed.
    """

    result: StudyResult
    commands: tuple[str, ...]
    machines: tuple[Mapping[str, Any], ...]
    threads: tuple[int, ...]
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    curves: Mapping[str, Mapping[int, tuple[tuple[int, float], ...]]] = field(default_factory=dict)

    @property
    def study(self) -> Study:
        """Its question and its methods."""
        return self.result.study

    @property
    def has_front(self) -> bool:
        """Whether cost against value is a question: deficits of varied length vary both."""
        return self.study.kind != "critical-periods"


def read_data(path: Path) -> dict[str, Any]:
    """The file of a page; damage is an error that names it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); publish it again") from None
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise ValueError(f"{path} is no file of a page: it has no kind; publish it again")
    return data


def restore(data: Mapping[str, Any], *, source: str = "data") -> Evidence:
    """The study, its values to twelve digits; a key that lacks is an error that names it."""
    try:
        return _restore(data)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged(source, error) from None


def damaged(source: object, error: Exception) -> ValueError:
    """What to say of a file that has the right kind and wrong contents."""
    why = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return ValueError(f"{source} is damaged ({why}); publish it again")


def _restore(data: Mapping[str, Any]) -> Evidence:
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
        MethodResult(method=method, runs=tuple(_state(study, method, run) for run in entry["runs"]))
        for method, entry in zip(methods, entries, strict=True)
    )
    keyed = [(method.key, entry) for method, entry in zip(methods, entries, strict=True)]
    done = [run for entry in entries for run in entry["runs"] if run["state"] == "done"]
    return Evidence(
        result=StudyResult(study=study, output=Path(), methods=rows),
        commands=tuple(data["commands"]),
        machines=tuple(dict(machine) for machine in data["machines"]),
        threads=tuple(sorted({run["threads"] for run in done if run["threads"]})),
        published={
            key: {name: entry["published"][name] for name in CELL}
            for key, entry in keyed
            if "published" in entry
        },
        ids={key: entry["id"] for key, entry in keyed},
        curves={
            key: {run["seed"]: tuple((step, float(value)) for step, value in run.get("curve", ()))
                  for run in entry["runs"]}
            for key, entry in keyed
        },
    )  # fmt: skip


def _state(study: Study, method: Method, run: Mapping[str, Any]) -> RunState:
    if run["state"] not in STATES:
        raise ValueError(f"a run has the state {run['state']!r}; known: {', '.join(STATES)}")
    config = replace(method.config, seed=run["seed"])
    result = None
    if run["state"] == "done":
        metric, final = study.metric(method.group), run["final"]
        result = RunResult(
            name=config.name,
            seed=run["seed"],
            metric=metric,
            final={metric: float(final[metric]), **{k: float(v) for k, v in final.items()}},
            best=None,
            swa=None,
            eval_precision=run["eval_precision"],
            cost={
                "bitops": float(run["bitops"]),
                "relative_to_float32": float(run["of_float32"]),
            },
            steps=run["steps"],
            seconds=float(run["seconds"]),
            kernels={str(i): name for i, name in enumerate(run["kernels"])},
            weights_sha256=run["weights"],
            directory="",
        )
    return RunState(
        run=StudyRun(method=method, seed=run["seed"], config=config),
        directory=Path(config.run_name),
        state=run["state"],
        result=result,
        error=run.get("error"),
    )
