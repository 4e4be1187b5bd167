"""Real processes, really killed: what is resumed ends bit for bit like what was not."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bitcycle.train import resume, run
from bitcycle.train.checkpoint import Checkpoints
from bitcycle.train.evaluate_run import evaluate_run
from tests.e2e.commands import (
    ENVIRONMENT,
    has_lines,
    long,
    process,
    training,
    wait_until,
    waiting_in_step_50,
)
from tests.train.small import folder_of, traces

KILL_TEST = Path(__file__).parents[2] / "benchmarks" / "kill_test.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    config = long(tmp_path_factory.mktemp("whole") / "runs")
    run(config)
    return traces(folder_of(config))


@pytest.mark.parametrize("setup", ["convnet", "lstm"])
def test_killed_at_random_moments_and_inside_checkpoints_it_ends_the_same(setup):
    """`benchmarks/kill_test.py`, shortened."""
    command = [sys.executable, str(KILL_TEST), "--kills", "6", "--steps", "30", "--setup", setup]
    done = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.lstrip()[:1].isdigit()]
    assert sum("bit-identical" not in row for row in rows) == 6, done.stdout
    assert "finished: bit-identical" in done.stdout
    assert done.stdout.endswith("all bit-identical\n")


def test_the_command_line_goes_on_after_a_kill_with_resume_auto(tmp_path, uninterrupted):
    config = long(tmp_path / "runs")
    with training(config) as child:
        wait_until(has_lines(config, 20), child)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert not (folder_of(config) / "result.json").exists()
    with process("train", str(tmp_path / "config.yaml"), "--resume", "auto") as child:
        out, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, "")
    assert "going on from step" in out
    assert traces(folder_of(config)) == uninterrupted


def test_a_run_belongs_to_one_process_which_others_do_not_disturb(tmp_path, uninterrupted):
    config = long(tmp_path / "runs")
    with waiting_in_step_50(config) as (first, go):
        with pytest.raises(ValueError, match=rf"another process \(pid {first.pid}\); wait"):
            resume(folder_of(config))
        with process("resume", str(folder_of(config))) as second:
            _, err = second.communicate(timeout=120)
        assert second.returncode == 2
        assert f"is being run by another process (pid {first.pid})" in err
        assert "Traceback" not in err
        go.touch()
        _, err = first.communicate(timeout=120)
    assert (first.returncode, err) == (0, "")
    assert traces(folder_of(config)) == uninterrupted


def test_a_run_can_be_evaluated_while_it_goes_on(tmp_path, uninterrupted):
    config = long(tmp_path / "runs")
    with training(config) as child:
        wait_until(lambda: bool(Checkpoints(folder_of(config) / "checkpoints").steps()), child)
        for _ in range(5):
            assert evaluate_run(folder_of(config))["step"] % 40 in (0, 20)
        out, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, ""), out
    assert traces(folder_of(config)) == uninterrupted


def test_the_traces_that_are_compared_see_a_single_changed_bit(tmp_path, uninterrupted):
    """Else nothing above could fail."""
    config = long(tmp_path / "runs", seed=1)
    run(config)
    found = traces(folder_of(config))
    assert found.keys() == uninterrupted.keys()
    assert (
        found["step-00000500/model.safetensors"] != uninterrupted["step-00000500/model.safetensors"]
    )
    assert json.dumps(found["metrics"]) != json.dumps(uninterrupted["metrics"])
