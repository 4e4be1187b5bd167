"""What a page needs of a study's runs, as plain data: small, rounded, always in one order."""

from __future__ import annotations

import re
from typing import Any

from bitcycle.study.adjust import StudyOptions
from bitcycle.study.identity import config_id
from bitcycle.study.publish.commands import study_commands
from bitcycle.study.publish.counterpart import counterparts
from bitcycle.study.publish.jsontext import rounded
from bitcycle.study.publish.settings import to_settings
from bitcycle.study.results import RunState, StudyResult
from bitcycle.train.directory import RunDirectory
from bitcycle.train.measured import MACHINE
from bitcycle.train.result import RunResult

MOST_POINTS = 12  # of a curve
LONGEST = 200  # characters of an error


def gather(result: StudyResult, options: StudyOptions) -> dict[str, Any]:
    """The study's question, its methods, and every run that there is."""
    study = result.study
    published = counterparts(study)
    machines: list[dict[str, Any]] = []
    methods = [
        {
            "label": row.method.label,
            "group": row.method.group,
            "place": None if row.method.place is None else list(row.method.place),
            "at": row.method.at,
            "id": config_id(row.method.config),
            "settings": to_settings(row.method.config),
            "published": published.get(row.method.key),
            "runs": [_run(state, machines) for state in row.runs],
        }
        for row in result.methods
    ]
    return {
        "kind": "study",
        "name": study.name,
        "description": study.description,
        "question": study.kind,
        "scale": study.scale,
        "baseline": study.baseline,
        "seeds": list(study.seeds),
        "notes": list(study.notes),
        "commands": list(study_commands(study, options)),
        "machines": machines,
        "methods": [{k: v for k, v in method.items() if v is not None} for method in methods],
    }


def _run(state: RunState, machines: list[dict[str, Any]]) -> dict[str, Any]:
    said: dict[str, Any] = {"seed": state.run.seed, "state": state.state}
    if state.error is not None:
        said["error"] = without_paths(state.error)
    if state.result is None:
        return said
    return {**said, **_result(state.result), **_recorded(state, machines)}


def _result(result: RunResult) -> dict[str, Any]:
    cost = result.cost
    return {
        "final": {name: rounded(value) for name, value in result.final.items()},
        "eval_precision": result.eval_precision,
        "bitops": cost["bitops"],
        "of_float32": rounded(cost.get("relative_to_float32") or 0.0, 6),
        "steps": result.steps,
        "seconds": rounded(result.seconds, 6),
        "kernels": sorted(set(result.kernels.values())),
        "weights": result.weights_sha256[:16],
    }


def _recorded(state: RunState, machines: list[dict[str, Any]]) -> dict[str, Any]:
    """The machine, as a number in the list of them, the threads and the curve."""
    assert state.result is not None
    directory = RunDirectory(state.directory)
    found = directory.read_environment()
    machine = {key: found[key] for key in MACHINE if key in found}
    if machine not in machines:
        machines.append(machine)
    threads = state.run.config.threads or found.get("num_threads")
    lines = directory.read_metrics()
    return {
        "machine": machines.index(machine),
        "threads": threads,
        "curve": thin_curve(lines, state.result.metric),
    }


def thin_curve(lines: list[dict[str, Any]], metric: str) -> list[list[Any]]:
    """[step, value] of the evaluations on the test split: all of them, or every k-th and the last.

    >>> lines = [{"step": s, "kind": "eval", "split": "test", "m": s / 3} for s in range(1, 26)]
    >>> [step for step, _ in thin_curve(lines, "m")]
    [1, 4, 7, 10, 13, 16, 19, 22, 25]
    """
    points = [
        [line["step"], rounded(line[metric], 5)]
        for line in lines
        if line.get("kind") == "eval" and line.get("split") == "test" and metric in line
    ]
    stride = -(-len(points) // MOST_POINTS) or 1
    return points[(len(points) - 1) % stride :: stride]  # the last one is always among them


def without_paths(text: str) -> str:
    """An error without the folders of the machine it came from.

    >>> without_paths("OSError: no room in /home/me/runs/a (log: /home/me/runs/studies/a.txt)")
    'OSError: no room in a'
    """
    text = re.sub(r" \(log: .*\)$", "", text)
    text = re.sub(r"(?<![\w.])(?:~|\.\.?)?/(?:[^\s/'\"]+/)*([^\s/'\"]*)", r"\1", text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
