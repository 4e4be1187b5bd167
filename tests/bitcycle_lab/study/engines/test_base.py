"""Engines by name, and the training of one run."""

import os
import signal
from dataclasses import replace

import pytest

from bitcycle_lab.study.engines import make_engine
from bitcycle_lab.study.engines.base import (
    log_file,
    run_directory,
    train_or_resume,
    train_run,
)
from bitcycle_lab.study.engines.local import LocalEngine
from bitcycle_lab.train import RunResult, TrackingConfig, loop, run
from bitcycle_lab.train.config import CheckpointConfig, PrecisionConfig
from tests.bitcycle_lab.study.small_studies import crashing, diverging, run_until, tiny
from tests.bitcycle_lab.train.small import files_below, lstm, write_words

# -- engines --------------------------------------------------------------------------------------


def test_local_runs_one_at_a_time_by_default():
    assert isinstance(make_engine("local", num_jobs=None), LocalEngine)
    assert make_engine("local", num_jobs=None).num_jobs == 1
    assert make_engine("local", num_jobs=3).num_jobs == 3
    assert not make_engine("local", num_jobs=1).is_full


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "lokal", "num_jobs": 1}, "'lokal'.*did you mean 'local'"),
        ({"name": "local", "num_jobs": 0}, r"jobs \(0\)"),
        ({"name": "local", "num_jobs": 1, "address": "auto"}, "--engine ray"),
    ],
)
def test_a_wrong_choice_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        make_engine(**options)


# -- training one run -----------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path):
    return replace(tiny(), output=str(tmp_path))


def test_a_run_that_finishes_leaves_no_log(config):
    log_file(config).parent.mkdir(parents=True)
    log_file(config).write_text("a traceback of yesterday", encoding="utf-8")
    outcome = train_run(config)
    assert (outcome.name, outcome.state, outcome.message) == (config.run_name, "done", "")
    assert not log_file(config).exists()


def test_a_finished_run_is_left_alone(config):
    run(config)
    folder = run_directory(config).path
    before = files_below(folder)
    elsewhere = replace(config, tracking=TrackingConfig(log_every=1))
    assert train_or_resume(elsewhere) == RunResult.read(folder)
    assert files_below(folder) == before


def test_a_run_resumes_also_when_its_tracking_and_its_data_have_moved(tmp_path):
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
    result = train_or_resume(moved)
    assert result.weights_sha256 == whole.weights_sha256
    assert result.final == whole.final
    assert run_directory(config).read_config() == moved


def test_a_run_with_the_default_backward_bits_resumes(tmp_path):
    precision = PrecisionConfig(forward=4)
    config = replace(tiny(), output=str(tmp_path), precision=precision)
    assert config.precision.backward == "default"
    run_until(config, 3)
    before = run_directory(config).config_file.read_bytes()
    assert train_or_resume(config).steps == 4
    assert run_directory(config).config_file.read_bytes() == before


def test_a_refused_run_keeps_its_folder(config):
    run_until(config, 3)
    edited = replace(config, clip_norm=1.0)  # config.yaml, not the checkpoint
    run_directory(config).write_config(edited)
    before = files_below(run_directory(config).path)
    with pytest.raises(ValueError, match="clip_norm"):
        train_or_resume(replace(edited, tracking=TrackingConfig(log_every=1)))
    assert files_below(run_directory(config).path) == before


def test_another_configuration_in_the_folder_is_an_error_that_names_the_difference(config):
    run_until(config, 2)
    outcome = train_run(replace(config, clip_norm=1.0))
    assert outcome.state == "failed"
    assert "clip_norm: was null, is 1.0" in outcome.message


@pytest.mark.parametrize(
    ("method", "error"), [(crashing(), "ValueError: swa.start"), (diverging(), "NonFiniteError: ")]
)
def test_a_crash_is_an_outcome_with_type_message_and_log(method, error, tmp_path):
    config = replace(method.config, output=str(tmp_path))
    outcome = train_run(config)
    assert outcome.state == "failed"
    assert outcome.message.startswith(error)
    assert outcome.message.endswith(f"(log: {log_file(config)})")
    assert "Traceback" in log_file(config).read_text(encoding="utf-8")


def test_what_a_run_prints_goes_to_its_log(config, monkeypatch, capfd):
    step = loop.train_step

    def noisy(session, micro_batches):
        print("from Python")
        os.system("echo from outside")
        step(session, micro_batches)

    monkeypatch.setattr(loop, "train_step", noisy)
    assert train_run(config).state == "done"
    assert capfd.readouterr().out == ""
    lines = log_file(config).read_text(encoding="utf-8").splitlines()
    assert sorted(set(lines)) == ["from Python", "from outside"]


def test_a_run_stopped_by_a_signal_can_be_resumed(config, monkeypatch):
    step = loop.train_step

    def interrupted(session, micro_batches):
        if session.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        step(session, micro_batches)

    monkeypatch.setattr(loop, "train_step", interrupted)
    outcome = train_run(config)
    assert outcome.state == "stopped"
    assert "step 2" in outcome.message
    assert train_run(config).state == "done"


def test_a_second_study_finds_a_run_busy_and_leaves_its_log_alone(config, monkeypatch):
    step, second = loop.train_step, []

    def noisy(session, micro_batches):
        print("a line of the first")
        if not second:
            assert run_directory(config).is_locked
            second.append(train_run(config))
        step(session, micro_batches)

    monkeypatch.setattr(loop, "train_step", noisy)
    assert train_run(config).state == "done"
    assert [outcome.state for outcome in second] == ["busy"]
    assert log_file(config).read_bytes() == b"a line of the first\n" * config.steps


def test_a_long_message_is_shortened(config, monkeypatch):
    def fail(config):
        raise ValueError("x" * 10_000 + "\n" + "y")

    monkeypatch.setattr("bitcycle_lab.study.engines.base.train_or_resume", fail)
    message = train_run(config).message
    assert len(message) < 2200
    assert "\n" not in message


def test_a_run_that_another_process_has_is_busy(config):
    run_until(config, 2)
    directory = run_directory(config)
    assert not directory.is_locked
    with directory.locked():
        assert directory.is_locked
        assert train_run(config).state == "busy"
    assert train_run(config).state == "done"
