"""What stops a run from outside: signals, NaN, a full disk. A clear message, and it can go on."""

import functools
import os
import resource
import signal
import subprocess
import time

import pytest

from bitcycle.train import (
    CheckpointConfig,
    LrConfig,
    OptimizerConfig,
    TrackingConfig,
    resume,
    run,
)
from bitcycle.train.checkpoint import Checkpoints
from tests.e2e.commands import (
    has_lines,
    long,
    training,
    two_processes,
    wait_until,
    waiting_in_step_50,
)
from tests.train.small import folder_of, lstm, traces, write_words

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    config = long(tmp_path_factory.mktemp("whole") / "runs")
    run(config)
    return traces(folder_of(config))


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
    assert (child.returncode, err) == (130, "bitcycle: interrupted\n")
    resume(folder_of(config))
    assert traces(folder_of(config)) == uninterrupted


def test_a_loss_that_is_not_finite_is_one_line_and_exit_code_1(tmp_path):
    rate, policy = OptimizerConfig(lr=1e30), LrConfig(policy="constant")
    config = long(tmp_path / "runs", optimizer=rate, lr=policy)
    with training(config) as child:
        _, err = child.communicate(timeout=120)
    assert child.returncode == 1
    assert err.startswith("bitcycle: error: ")
    assert err.count("\n") == 1
    assert "at step " in err
    assert "fc" in err  # the layer
    assert "w3a3e6g6" in err  # the bits of the first steps
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
    assert "and resume the run" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("is_tracked", [True, False], ids=["TensorBoard", "plain"])
def test_a_full_disk_stops_the_run_and_costs_nothing(tmp_path, disk, is_tracked):
    tracking = TrackingConfig(log_every=5, tensorboard=is_tracked)
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
    assert_stopped_for_room(child, err, "the checkpoint of step 1 could not be written")
    assert not list((folder_of(config) / "checkpoints").iterdir())
    assert resume(folder_of(config)).steps == 20


def test_two_processes_stop_together_and_go_on_exactly(tmp_path):
    """Each has columns of the text of its own, and so a recurrent state of its own."""
    text = write_words(tmp_path / "text")
    whole, broken = (lstm(tmp_path / name / "runs", text) for name in ("whole", "broken"))
    assert two_processes(tmp_path / "whole", whole).returncode == 0
    stopped = two_processes(tmp_path / "broken", broken, stop=4)
    assert stopped.returncode != 0
    assert "bitcycle: stopped at step 5" in stopped.stderr
    done = two_processes(tmp_path / "broken", broken)
    assert done.returncode == 0, done.stderr
    assert "going on from step 5" in done.stdout
    assert traces(folder_of(broken)) == traces(folder_of(whole))
