"""A signal requests a stop: the step finishes, a checkpoint is written, the run can resume."""

import os
import pickle
import signal
import subprocess
import sys
import threading

import pytest

from bitcycle_lab.train import loop, resume, run
from bitcycle_lab.train.checkpoint import Checkpoints
from bitcycle_lab.train.signals import Interrupted, StopRequest, block_sigint
from tests.bitcycle_lab.train.small import folder_of, small, traces


def signal_in_step(patch, step, *signals):
    """This process gets the signals while it takes this 0-based step."""
    original = loop.train_step

    def interrupted(session, micro_batches):
        if session.step == step:
            for signum in signals:
                os.kill(os.getpid(), signum)
        original(session, micro_batches)

    patch.setattr(loop, "train_step", interrupted)


def test_the_step_is_finished_and_saved_before_the_run_stops(tmp_path, monkeypatch):
    config = small(tmp_path / "broken")
    with monkeypatch.context() as patch:
        signal_in_step(patch, 4, signal.SIGTERM)
        with pytest.raises(Interrupted, match="step 5") as caught:
            run(config)
    assert caught.value.exit_code == 143
    assert Checkpoints(folder_of(config) / "checkpoints").steps() == [3, 5]
    assert "stopped: stopped at step 5" in (folder_of(config) / "log.txt").read_text()
    resume(folder_of(config))
    whole = small(tmp_path / "whole")
    run(whole)
    assert traces(folder_of(config)) == traces(folder_of(whole))


def test_a_signal_in_the_last_step_lets_the_run_finish_first(tmp_path, monkeypatch):
    config = small(tmp_path)
    signal_in_step(monkeypatch, 11, signal.SIGTERM)
    with pytest.raises(Interrupted, match="finished"):
        run(config)
    assert (folder_of(config) / "result.json").exists()


def test_a_signal_that_is_ignored_stays_ignored():
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest().listening() as stop_request:
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop_request.signum == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)


def test_a_second_interrupt_stops_at_once(tmp_path, monkeypatch):
    config = small(tmp_path)
    signal_in_step(monkeypatch, 4, signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(config)
    assert Checkpoints(folder_of(config) / "checkpoints").steps() == [3]
    assert "stopped: KeyboardInterrupt" in (folder_of(config) / "log.txt").read_text()


def test_the_former_handlers_come_back():
    former = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopRequest().listening():
        assert signal.getsignal(signal.SIGTERM) != former[0]
        assert signal.getsignal(signal.SIGINT) != former[1]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == former


def test_in_another_thread_nothing_is_listened_to():
    former = signal.getsignal(signal.SIGTERM)
    seen = []

    def body():
        with StopRequest().listening() as stop_request:
            seen.append((signal.getsignal(signal.SIGTERM) == former, stop_request.signum))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [(True, None)]


def test_an_interruption_survives_the_way_between_processes():
    error = pickle.loads(pickle.dumps(Interrupted(signal.SIGTERM, "stopped at step 3")))
    assert (str(error), error.exit_code) == ("stopped at step 3", 143)


def test_an_interrupt_while_a_process_starts_is_not_lost():
    with StopRequest().listening() as stop_request:
        with block_sigint():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert stop_request.signum == signal.SIGINT
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


STARTS_A_CHILD = """
import time
from multiprocessing import get_context
from bitcycle_lab.train.signals import block_sigint
child = get_context("spawn").Process(target=time.sleep, args=(60,))
with block_sigint():
    child.start()
with open(f"/proc/{child.pid}/status") as lines:
    print(next(line for line in lines if line.startswith("SigBlk")).split()[1])
child.kill()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_even_the_first_process_started_never_hears_it():
    # of a fresh process, in which no helper of multiprocessing runs yet
    blocked = subprocess.run(
        [sys.executable, "-c", STARTS_A_CHILD], check=True, capture_output=True, text=True
    ).stdout
    assert int(blocked, 16) & 1 << (signal.SIGINT - 1)
