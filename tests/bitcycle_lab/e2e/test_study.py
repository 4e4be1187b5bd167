"""Studies as commands in real processes: killed and rerun, and on a real Ray."""

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from tests import forking
from tests.bitcycle_lab.e2e.commands import ENVIRONMENT, process, wait_until
from tests.bitcycle_lab.train.small import traces

STUDY = {
    "name": "killed",
    "seeds": 2,
    "baseline": "static",
    "base": {
        "name": "digits",
        "model": {"name": "digits_mlp", "options": {"width": 16}},
        "data": {"subset": 160, "batch_size": 32, "validation": 40},
        "precision": {"forward": 8, "backward": 8},
        "eval": {"every": 100},
        "checkpoint": {"every": 20},
        "tracking": {"log_every": 5, "tensorboard": False},
        "steps": 300,
        "threads": 1,
    },
    "methods": {"static": {}, "cycled": {"precision.forward": "CR:3-8:2"}},
}


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    return str(path)


def run_command(*arguments):
    return forking.run_command(["study", *arguments], Path.cwd(), env=ENVIRONMENT, timeout=500)


def runs_of(output):
    return {path.parent.name: traces(path.parent) for path in Path(output).glob("*/result.json")}


def num_lines(output):
    return sum(path.read_bytes().count(b"\n") for path in Path(output).glob("*/metrics.jsonl"))


@pytest.mark.slow
def test_a_study_killed_at_any_moment_and_rerun_ends_like_one_that_was_not(study, tmp_path):
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    done = run_command("run", study, "--jobs", "2", "--output", whole)
    assert done.returncode == 0, done.stderr
    for number in (8, 140):  # in the first runs, and in the last
        arguments = ("study", "run", study, "--jobs", "2", "--output", cut)
        with process(*arguments, start_new_session=True) as child:
            wait_until(lambda number=number: num_lines(cut) >= number, child, seconds=300)
            os.killpg(child.pid, signal.SIGKILL)
    assert len(runs_of(cut)) < 4
    again = run_command("run", study, "--jobs", "2", "--output", cut)
    assert again.returncode == 0, again.stderr
    assert "to resume" in again.stdout
    assert len(runs_of(whole)) == 4
    assert runs_of(cut) == runs_of(whole)


@pytest.mark.slow
def test_an_interrupted_study_leaves_checkpoints_and_goes_on(study, tmp_path):
    output = str(tmp_path / "runs")
    with process("study", "run", study, "--jobs", "2", "--output", output) as child:
        wait_until(lambda: num_lines(output) >= 8, child, seconds=300)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=200)
    assert child.returncode == 130
    assert list(Path(output).glob("*/checkpoints/step-*"))
    status = run_command("status", study, "--output", output)
    assert "interrupted" in status.stdout
    assert run_command("run", study, "--jobs", "2", "--output", output).returncode == 0


@pytest.mark.slow
def test_the_real_ray_gives_the_same_runs_and_fails_the_same_way(study, tmp_path):
    pytest.importorskip("ray")
    settings = {**STUDY, "seeds": 1}
    settings["methods"] = {**STUDY["methods"], "crashing": {"swa.start": 10_000}}
    Path(study).write_text(yaml.safe_dump(settings), encoding="utf-8")
    outputs = {engine: str(tmp_path / engine) for engine in ("local", "ray")}
    for engine, output in outputs.items():
        done = run_command(
            "run", study, "--steps", "40", "--engine", engine, "--jobs", "2", "--output", output
        )
        assert done.returncode == 1, done.stderr
        assert "failed: crashing seed 0: ValueError: swa.start (10000)" in done.stdout
    local, ray = (runs_of(output) for output in outputs.values())
    assert len(local) == 2
    assert local == ray  # every metric, every byte of the final state
    hashes = [run["result"]["weights_sha256"] for run in ray.values()]
    assert len(set(hashes)) == 2
    failures = [
        json.loads((Path(output) / "studies" / "failures.json").read_text(encoding="utf-8"))
        for output in outputs.values()
    ]
    assert [list(names) for names in failures] == [list(failures[0])] * 2


@pytest.mark.slow
def test_on_the_real_ray_a_signal_leaves_checkpoints_and_the_study_goes_on(study, tmp_path):
    pytest.importorskip("ray")
    output = str(tmp_path / "runs")
    arguments = ("study", "run", study, "--seeds", "0", "--engine", "ray", "--output", output)
    with process(*arguments) as child:
        wait_until(lambda: num_lines(output) >= 4, child, seconds=300)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=200)
    assert child.returncode == 143, err
    assert "stopped at step" in out
    assert list(Path(output).glob("*/checkpoints/step-*"))
    done = run_command("run", study, "--seeds", "0", "--engine", "ray", "--output", output)
    assert done.returncode == 0, done.stderr
