"""Workers of this machine: one that dies takes no other with it, and none is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import active_children

import pytest

from bitcycle_lab.study.engines.base import run_directory
from bitcycle_lab.study.engines.local import LocalEngine, outcome_of_exit
from bitcycle_lab.train.config import CheckpointConfig, TrackingConfig
from tests.bitcycle_lab.study.small_studies import crashing, tiny


def config_in(output, name, **changes):
    return replace(tiny(**changes), output=str(output), name=name)


def endless(output, name):
    tracking = TrackingConfig(log_every=1, tensorboard=False)
    every = CheckpointConfig(every=0)
    return config_in(output, name, steps=1_000_000, tracking=tracking, checkpoint=every)


def wait_for_all(engine, seconds=90.0):
    outcomes, until = {}, time.monotonic() + seconds
    while engine.running:
        assert time.monotonic() < until
        outcomes |= {outcome.name: outcome for outcome in engine.wait(1.0)}
    return outcomes


def wait_for_steps(config, seconds=90.0):
    until = time.monotonic() + seconds
    while not run_directory(config).read_metrics():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("code", "state", "message"),
    [
        (-signal.SIGKILL, "failed", "SIGKILL, perhaps for lack of memory"),
        (-signal.SIGSEGV, "failed", "SIGSEGV"),
        (3, "failed", "exit code 3"),
        (-signal.SIGTERM, "stopped", "stopped"),
    ],
)
def test_a_process_without_a_report_has_the_outcome_of_its_exit_code(code, state, message):
    outcome = outcome_of_exit(code, tiny())
    assert (outcome.name, outcome.state) == ("small-seed0", state)
    assert message in outcome.message


def pid_of(config):
    return int((run_directory(config).path / ".lock").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_worker_trains_run_after_run_until_one_fails(tmp_path):
    one, two, three = (config_in(tmp_path, name, steps=2) for name in ("one", "two", "three"))
    crash = replace(crashing().config, output=str(tmp_path), name="crash")
    with LocalEngine(1) as engine:
        engine.start(one)
        assert engine.running == ("one-seed0",)
        assert engine.is_full
        assert engine.wait(0.0) == []
        outcomes = wait_for_all(engine)
        for config in (two, crash, three):
            engine.start(config)
            outcomes |= wait_for_all(engine)
    assert {name: outcome.state for name, outcome in outcomes.items()} == {
        "one-seed0": "done", "two-seed0": "done", "crash-seed0": "failed", "three-seed0": "done",
    }  # fmt: skip
    assert outcomes["crash-seed0"].message.startswith("ValueError: swa.start")
    assert pid_of(one) == pid_of(two) != os.getpid()
    assert pid_of(three) != pid_of(one)  # whatever a failed run left behind is gone
    results = [run_directory(config).result_file.read_text("utf-8") for config in (one, two, three)]
    sums = {json.loads(text)["weights_sha256"] for text in results}
    assert len(sums) == 1  # the same run, whatever its process has trained before


@pytest.mark.slow
def test_a_worker_that_died_between_two_runs_is_replaced(tmp_path):
    one, two = (config_in(tmp_path, name) for name in ("one", "two"))
    with LocalEngine(1) as engine:
        engine.start(one)
        wait_for_all(engine)
        os.kill(pid_of(one), signal.SIGKILL)
        for worker in active_children():
            worker.join()
        engine.start(two)
        assert wait_for_all(engine)["two-seed0"].state == "done"


@pytest.mark.slow
def test_a_process_that_is_killed_is_a_failed_run_and_others_go_on(tmp_path):
    victim, other = endless(tmp_path, "victim"), config_in(tmp_path, "other", steps=200)
    with LocalEngine(2) as engine:
        for config in (victim, other):
            engine.start(config)
        assert engine.is_full
        wait_for_steps(victim)
        os.kill(pid_of(victim), signal.SIGKILL)
        outcomes = wait_for_all(engine)
    assert outcomes["victim-seed0"].state == "failed"
    assert "killed by SIGKILL" in outcomes["victim-seed0"].message
    assert outcomes["other-seed0"].state == "done"


@pytest.mark.slow
def test_asked_to_stop_a_run_writes_its_checkpoint(tmp_path):
    config = endless(tmp_path, "long")
    with LocalEngine(1) as engine:
        engine.start(config)
        wait_for_steps(config)
        engine.stop()
        outcomes = wait_for_all(engine)
    assert outcomes["long-seed0"].state == "stopped"
    assert list((run_directory(config).path / "checkpoints").glob("step-*"))


PARENT = """
import os, signal, sys, time
from bitcycle_lab.study.engines.local import LocalEngine
from bitcycle_lab.train.config_file import read_config
if __name__ == "__main__":
    engine = LocalEngine(1)
    config = read_config(sys.argv[1])
    engine.start(config)
    time.sleep(1000)
"""


@pytest.mark.slow
def test_a_study_that_is_killed_does_not_go_on_in_the_background(tmp_path):
    from bitcycle_lab.train.config_file import to_yaml

    config = endless(tmp_path, "long")
    (tmp_path / "parent.py").write_text(PARENT, encoding="utf-8")
    (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "config.yaml")]
    with subprocess.Popen(command) as parent:
        wait_for_steps(config)
        parent.kill()
    pid = pid_of(config)
    until = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{pid}")
    assert list((run_directory(config).path / "checkpoints").glob("step-*"))
