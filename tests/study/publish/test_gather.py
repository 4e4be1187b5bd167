"""What goes into the file of a study."""

import json

from bitcycle.study.publish.gather import MOST_POINTS, thin_curve, without_paths
from bitcycle.study.publish.jsontext import to_json
from bitcycle.study.results import read_study
from bitcycle.train.measured import MACHINE
from tests.study.made_up import write_runs
from tests.study.publish.made import ALIKE, data_of, made

ENVIRONMENT = {"bitcycle": "0.1.0", "torch": "2.13.0", "processor": "AMD EPYC", "num_cpus": 2,
               "platform": "Linux-vm", "command": ["/home/me/x"], "num_threads": 2}  # fmt: skip


def test_machine_threads_and_curve_come_from_the_folders(tmp_path):
    result = made(ALIKE, output=tmp_path)
    write_runs(result)
    for row in result.methods:
        for state in row.runs:
            (state.directory / "env.json").write_text(json.dumps(ENVIRONMENT))
            line = {"step": 240, "kind": "eval", "split": "test", "accuracy": 91.25}
            (state.directory / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    data = data_of(read_study(result.study, tmp_path))
    assert data["machines"] == [{k: v for k, v in ENVIRONMENT.items() if k in MACHINE}]
    run = data["methods"][1]["runs"][0]
    assert (run["threads"], run["machine"], run["curve"]) == (2, 0, [[240, 91.25]])
    assert run["final"] == {"accuracy": 91.5, "loss": 0.1}
    assert "/home" not in to_json(data)


def test_the_same_runs_give_the_same_bytes():
    assert to_json(data_of(made(ALIKE))) == to_json(data_of(made(ALIKE)))


def test_failed_and_missing_runs_are_in_it():
    data = data_of(made({0: 91.0, 1: None}))
    states = [(run["seed"], run["state"]) for run in data["methods"][1]["runs"]]
    assert states == [(0, "done"), (1, "failed"), (2, "missing")]
    assert data["methods"][1]["runs"][1]["error"] == "loss is nan"


def test_a_long_curve_keeps_its_end():
    lines = [{"step": s, "kind": "eval", "split": "test", "m": float(s)} for s in range(1, 101)]
    curve = thin_curve(lines, "m")
    assert len(curve) <= MOST_POINTS
    assert curve[-1] == [100, 100.0]
    assert thin_curve([], "m") == []


def test_relative_paths_go_too():
    assert without_paths("cannot read ../../data/x.bin: no") == "cannot read x.bin: no"
