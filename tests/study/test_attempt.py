"""One run of a study: begun or gone on with, and always an ending."""

import os
import signal
from dataclasses import replace

import pytest

from bitcycle.study.engines.base import attempt, finish, is_held, log_file, run_folder
from bitcycle.train import RunResult, TrackingConfig, loop, run
from bitcycle.train.config import CheckpointConfig
from tests.study.small_studies import crashing, diverging, run_until, tiny
from tests.train.small import files_below, lstm, write_words


@pytest.fixture
def config(tmp_path):
    return replace(tiny(), output=str(tmp_path))


def test_a_run_that_finishes_leaves_no_log(config):
    log_file(config).parent.mkdir(parents=True)
    log_file(config).write_text("a traceback of yesterday", encoding="utf-8")
    ending = attempt(config)
    assert (ending.name, ending.state, ending.message) == (config.run_name, "done", "")
    assert not log_file(config).exists()


def test_a_finished_run_is_left_alone(config):
    run(config)
    folder = run_folder(config).path
    before = files_below(folder)
    elsewhere = replace(config, tracking=TrackingConfig(log_every=1))
    assert finish(elsewhere) == RunResult.read(folder)
    assert files_below(folder) == before


def test_a_run_goes_on_also_when_its_tracking_and_its_data_have_moved(tmp_path):
    config = lstm(tmp_path / "runs", write_words(tmp_path / "here"))
    whole = run(replace(config, output=str(tmp_path / "whole")))
    run_until(config, 8)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = replace(
        config,
        data=replace(config.data, root=str(tmp_path / "there"), cache_dir=None),
        tracking=TrackingConfig(log_every=1, tensorboard=False),
        checkpoint=CheckpointConfig(every=0),
    )
    result = finish(moved)
    assert result.weights_sha256 == whole.weights_sha256
    assert result.final == whole.final
    assert run_folder(config).read_config() == moved


def test_another_configuration_in_the_folder_is_an_error_that_names_the_difference(config):
    run_until(config, 2)
    ending = attempt(replace(config, clip_norm=1.0))
    assert ending.state == "failed"
    assert "was started with other settings (clip_norm)" in ending.message


@pytest.mark.parametrize(
    ("method", "error"), [(crashing(), "ValueError: swa.start"), (diverging(), "NonFiniteError: ")]
)
def test_a_crash_is_an_ending_with_type_message_and_log(method, error, tmp_path):
    config = replace(method.config, output=str(tmp_path))
    ending = attempt(config)
    assert ending.state == "failed"
    assert ending.message.startswith(error)
    assert ending.message.endswith(f"(log: {log_file(config)})")
    assert "Traceback" in log_file(config).read_text(encoding="utf-8")


def test_what_a_run_prints_goes_to_its_log(config, monkeypatch, capfd):
    step = loop.train_step

    def noisy(session, micro_batches):
        print("from Python")
        os.system("echo from outside")
        step(session, micro_batches)

    monkeypatch.setattr(loop, "train_step", noisy)
    assert attempt(config).state == "done"
    assert capfd.readouterr().out == ""
    lines = log_file(config).read_text(encoding="utf-8").splitlines()
    assert sorted(set(lines)) == ["from Python", "from outside"]


def test_a_signal_is_an_ending_that_can_go_on(config, monkeypatch):
    step = loop.train_step

    def interrupted(session, micro_batches):
        if session.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        step(session, micro_batches)

    monkeypatch.setattr(loop, "train_step", interrupted)
    ending = attempt(config)
    assert ending.state == "stopped"
    assert "stopped at step 2" in ending.message
    assert attempt(config).state == "done"


def test_a_second_study_finds_a_run_busy_and_leaves_its_log_alone(config, monkeypatch):
    step, second = loop.train_step, []

    def noisy(session, micro_batches):
        print("a line of the first")
        if not second:
            assert is_held(run_folder(config))
            second.append(attempt(config))
        step(session, micro_batches)

    monkeypatch.setattr(loop, "train_step", noisy)
    assert attempt(config).state == "done"
    assert [ending.state for ending in second] == ["busy"]
    assert log_file(config).read_bytes() == b"a line of the first\n" * config.steps


def test_a_long_message_is_shortened(config, monkeypatch):
    def fail(config):
        raise ValueError("x" * 10_000 + "\n" + "y")

    monkeypatch.setattr("bitcycle.study.engines.base.run", fail)
    message = attempt(config).message
    assert len(message) < 2200
    assert "\n" not in message


def test_a_run_that_another_process_has_is_busy(config):
    run_until(config, 2)
    directory = run_folder(config)
    assert not is_held(directory)
    with directory.locked():
        assert is_held(directory)
        assert attempt(config).state == "busy"
    assert attempt(config).state == "done"
