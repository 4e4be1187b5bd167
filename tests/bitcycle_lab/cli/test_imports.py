"""A command imports what it runs: lists, schedules and states need neither torch nor numpy."""

import json
import subprocess
import sys

import pytest

from bitcycle_lab.cli.ls import KINDS
from bitcycle_lab.study.study_file import find_study
from tests.bitcycle_lab.study.made_up import result_of, write_run

RUN = """
import contextlib, io, json, sys
from bitcycle_lab.cli.main import main
with contextlib.redirect_stdout(io.StringIO()) as shown:
    code = main(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules), shown.getvalue()]))
"""
MOST_MODULES = 450  # torch alone has a thousand
STUDY = """
name: mine
baseline: static
seeds: 2
base: {model.name: digits_mlp, steps: 240}
methods:
  static: {precision.forward: 8}
  cycled: {precision.forward: "CR:3-8:8"}
"""


def run(*words):
    """What a command prints in a fresh interpreter; neither torch nor numpy may be imported."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words], capture_output=True, text=True, timeout=120, check=True
    )
    code, modules, shown = json.loads(done.stdout)
    assert code == 0, done.stderr
    assert {"torch", "numpy"} & set(modules) == set()
    assert len(modules) < MOST_MODULES
    return shown


@pytest.mark.parametrize(
    "words",
    ["--help", "ls --help", "schedule CR:3-8:8", *(f"ls {kind}" for kind in KINDS.names())],
)
def test_a_command_that_only_tells_imports_neither_torch_nor_numpy(words):
    assert run(*words.split()) != ""


def test_the_state_of_a_study_is_told_without_torch(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(STUDY)
    done, started, *_ = find_study(str(file)).runs(str(tmp_path))
    write_run(done.config, result_of(done, tmp_path, 97.25, 1e9))
    write_run(started.config, None, [{"kind": "train", "step": 100, "accuracy": 81.5}])
    lines = run("study", "status", str(file), "--output", str(tmp_path)).splitlines()
    assert lines[2].split() == ["static", "1", "0", "0", "1", "accuracy", "97.25"]
    assert lines[3].split() == ["cycled", "0", "1", "0", "1", "accuracy", "-"]
    assert "step 100/240" in lines[-1]
    assert "accuracy 81.50" in lines[-1]


def test_studies_are_listed_without_torch():
    assert "demo" in run("study", "ls")
