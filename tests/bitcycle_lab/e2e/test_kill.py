"""Real processes, killed or stopped from outside: what is resumed ends bit for bit the same."""

import functools
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from bitcycle_lab.train import (
    CheckpointConfig,
    LrConfig,
    OptimizerConfig,
    RunResult,
    TrackingConfig,
    resume,
    run,
)
from bitcycle_lab.train.checkpoint import Checkpoints
from bitcycle_lab.train.evaluate import evaluate_run
from tests.bitcycle_lab.e2e.commands import (
    ENVIRONMENT,
    has_lines,
    long,
    messages,
    process,
    training,
    two_processes,
    wait_until,
    waiting_in_step_50,
    write_config,
)
from tests.bitcycle_lab.train.small import folder_of, lstm, traces, write_words

KILL_TEST = Path(__file__).parents[3] / "benchmarks" / "kill_test.py"

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


def test_the_command_line_resumes_after_a_kill_with_resume_auto(tmp_path, uninterrupted):
    config = long(tmp_path / "runs")
    with training(config) as child:
        wait_until(has_lines(config, 20), child)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert not (folder_of(config) / "result.json").exists()
    with process("train", str(tmp_path / "config.yaml"), "--resume", "auto") as child:
        out, err = child.communicate(timeout=120)
    assert (child.returncode, messages(err)) == (0, "")
    assert "resumed at step" in out
    assert traces(folder_of(config)) == uninterrupted


def test_a_run_belongs_to_one_process_which_others_do_not_disturb(tmp_path, uninterrupted):
    config = long(tmp_path / "runs")
    with waiting_in_step_50(config) as (first, go):
        with pytest.raises(ValueError, match=str(first.pid)):
            resume(folder_of(config))
        with process("resume", str(folder_of(config))) as second:
            _, err = second.communicate(timeout=120)
        assert second.returncode == 2
        assert f"pid {first.pid}" in err
        assert "Traceback" not in err
        go.touch()
        _, err = first.communicate(timeout=120)
    assert (first.returncode, messages(err)) == (0, "")
    assert traces(folder_of(config)) == uninterrupted


def test_a_run_can_be_evaluated_while_it_trains(tmp_path, uninterrupted):
    config = long(tmp_path / "runs")
    with training(config) as child:
        wait_until(lambda: bool(Checkpoints(folder_of(config) / "checkpoints").steps()), child)
        for _ in range(5):
            assert evaluate_run(folder_of(config))["step"] % 40 in (0, 20)
        out, err = child.communicate(timeout=120)
    assert (child.returncode, messages(err)) == (0, ""), out
    assert traces(folder_of(config)) == uninterrupted


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_makes_a_checkpoint_and_the_conventional_exit_code(
    tmp_path, uninterrupted, signum, code
):
    config = long(tmp_path / "runs")
    with training(config) as child:
        wait_until(has_lines(config, 12), child)
        child.send_signal(signum)
        _, err = child.communicate(timeout=60)
    assert child.returncode == code
    err = messages(err)
    assert err.startswith("bitcycle: stopped at step ")
    assert "the checkpoint is in" in err
    assert err.count("\n") == 1
    step = int(err.split("step ")[1].split(";")[0])
    assert Checkpoints(folder_of(config) / "checkpoints").steps()[-1] == step
    resume(folder_of(config))
    assert traces(folder_of(config)) == uninterrupted


def test_a_second_interrupt_does_not_wait_for_the_step(tmp_path, uninterrupted):
    config = long(tmp_path / "runs")
    with waiting_in_step_50(config) as (child, _):
        child.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert child.poll() is None  # it would finish its step
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, messages(err)) == (130, "bitcycle: interrupted\n")
    resume(folder_of(config))
    assert traces(folder_of(config)) == uninterrupted


def test_a_loss_that_is_not_finite_is_one_line_and_exit_code_1(tmp_path):
    rate, policy = OptimizerConfig(lr=1e30), LrConfig(policy="constant")
    config = long(tmp_path / "runs", optimizer=rate, lr=policy)
    with training(config) as child:
        _, err = child.communicate(timeout=120)
    assert child.returncode == 1
    err = messages(err)
    assert err.startswith("bitcycle: error: ")
    assert err.count("\n") == 1
    assert "at step " in err
    assert "fc" in err  # the layer
    assert "w3a3e6" in err  # the bits of the first steps
    assert not (folder_of(config) / "result.json").exists()


@pytest.fixture
def disk(tmp_path):
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"only root may mount ({done.stderr.strip()}); the size limit below stands in")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def assert_stopped_for_room(child, err, reason):
    assert child.returncode == 1, err
    assert reason in err
    assert "Traceback" not in err


def test_a_full_disk_stops_the_run_and_costs_nothing(tmp_path, disk):
    tracking = TrackingConfig(log_every=5, tensorboard=True)
    config = long(disk / "runs", tracking=tracking)
    whole = long(tmp_path / "whole" / "runs", tracking=tracking)
    run(whole)
    with training(config) as child:
        wait_until(lambda: bool(Checkpoints(folder_of(config) / "checkpoints").steps()), child)
        fill(disk)
        _, err = child.communicate(timeout=120)
    assert_stopped_for_room(child, err, "No space left on device")
    (disk / "filler").unlink()
    assert Checkpoints(folder_of(config) / "checkpoints").load_newest() is not None
    resume(folder_of(config))
    assert traces(folder_of(config)) == traces(folder_of(whole))


def fill(disk):
    with (disk / "filler").open("wb", buffering=0) as handle:
        for size in (65536, 4096, 64, 1):
            try:
                while True:
                    handle.write(b"\0" * size)
            except OSError:
                continue


def test_files_that_may_not_grow_stop_the_run_and_cost_nothing(tmp_path, uninterrupted):
    """A limit that any user may set stands in for the disk: the metrics outgrow it first."""
    config = long(tmp_path / "runs")
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (15_000, 15_000))
    with training(config, preexec_fn=limit) as child:
        _, err = child.communicate(timeout=120)
    assert_stopped_for_room(child, err, "File too large")
    assert os.path.getsize(folder_of(config) / "metrics.jsonl") <= 15_000
    assert Checkpoints(folder_of(config) / "checkpoints").load_newest() is not None
    resume(folder_of(config))
    assert traces(folder_of(config)) == uninterrupted


def test_a_checkpoint_that_does_not_fit_stops_the_run(tmp_path):
    config = long(tmp_path / "runs", steps=20, checkpoint=CheckpointConfig(every=1))
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (5_000, 5_000))
    with training(config, preexec_fn=limit) as child:
        _, err = child.communicate(timeout=120)
    assert_stopped_for_room(child, err, "step 1")
    assert not list((folder_of(config) / "checkpoints").iterdir())
    assert resume(folder_of(config)).steps == 20


def test_of_three_processes_that_start_one_run_one_trains_it_and_the_others_say_so(tmp_path):
    config = long(tmp_path / "runs")
    path = str(write_config(config, tmp_path))
    with ExitStack() as stack:
        started = [
            stack.enter_context(process("train", path, "--quiet", "--resume", "auto"))
            for _ in range(3)
        ]
        ended = [child.communicate(timeout=240) for child in started]
    codes = [child.returncode for child in started]
    assert 0 in codes
    for code, (_, err) in zip(codes, ended, strict=True):
        if code != 0:  # one that comes after the end of the first returns its result
            [line] = err.splitlines()
            assert "another process trains this run" in line
    assert RunResult.read(folder_of(config)).steps == config.steps


def test_two_processes_stop_together_and_resume_exactly(tmp_path):
    """Each has columns of the text of its own, and so a recurrent state of its own."""
    text = write_words(tmp_path / "text")
    whole, broken = (lstm(tmp_path / name / "runs", text) for name in ("whole", "broken"))
    assert two_processes(tmp_path / "whole", whole).returncode == 0
    stopped = two_processes(tmp_path / "broken", broken, stop=4)
    assert stopped.returncode != 0
    assert "bitcycle: stopped at step 5" in stopped.stderr
    done = two_processes(tmp_path / "broken", broken)
    assert done.returncode == 0, done.stderr
    assert "resumed at step 5" in done.stdout
    assert traces(folder_of(broken)) == traces(folder_of(whole))
