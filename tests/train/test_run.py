"""A run in a folder of its own, never over another; mistakes are found before it is made."""

import dataclasses
import errno
import os
import signal
import sys

import pytest
import torch

from bitcycle.tasks import DataConfig
from bitcycle.train import (
    CheckpointConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunResult,
    SwaConfig,
    TrackingConfig,
    resume,
    run,
)
from bitcycle.train.checkpoint import CheckpointError, Checkpoints
from bitcycle.train.files import Appender
from bitcycle.train.run import resume_or_run
from bitcycle.train.signals import Interrupted
from tests.train.small import (
    files_below,
    folder_of,
    small,
)

train_run = sys.modules["bitcycle.train.run"]  # the package has a function of that name
DIGITS = DataConfig(subset=160, batch_size=32, eval_batch_size=128, validation=40)


def test_a_run_is_not_overwritten(tmp_path):
    config = small(tmp_path, steps=1)
    run(config)
    before = files_below(folder_of(config))
    with pytest.raises(ValueError, match="exists and is not empty.*--resume auto"):
        run(config)
    assert files_below(folder_of(config)) == before


def test_resuming_a_finished_run_returns_its_result_and_writes_nothing(tmp_path):
    config = small(tmp_path, steps=2)
    result = run(config)
    before = files_below(folder_of(config))
    assert resume(folder_of(config)) == resume_or_run(config) == result
    assert files_below(folder_of(config)) == before
    assert RunResult.read(folder_of(config)) == result


def test_resume_or_run_with_other_settings_is_an_error_that_names_the_keys(tmp_path):
    config = small(tmp_path, steps=1)
    run(config)
    changed = dataclasses.replace(
        config,
        optimizer=OptimizerConfig(lr=0.7, momentum=0.9, weight_decay=1e-4),
        precision=PrecisionConfig(forward={"fc1": 4}, backward=6),
        accumulate=2,
    )
    with pytest.raises(ValueError, match="other settings") as caught:
        resume_or_run(changed)
    assert "(optimizer.lr, precision.forward, accumulate)" in str(caught.value)


def test_the_same_settings_in_other_words_are_the_same(tmp_path):
    """Bits as text come back from YAML as a number."""
    config = small(tmp_path, steps=1, precision=PrecisionConfig(forward="4", backward="8"))
    assert resume_or_run(config) == resume_or_run(config)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"precision": PrecisionConfig(forward={"fc9": 4})}, ValueError, "fc9"),
        ({"precision": PrecisionConfig(forward=8, max_bits=4)}, ValueError, "max_bits"),
        ({"lr": LrConfig(policy="plateau")}, ValueError, r"set data\.validation"),
        ({"swa": SwaConfig(start=13)}, ValueError, r"swa\.start \(13\) is beyond the run's 12"),
        ({"data": DataConfig(name="cifar10", root="nowhere")}, (ValueError, OSError), "cifar10"),
    ],
)
def test_a_mistake_is_found_before_anything_is_created(tmp_path, changes, kind, message):
    with pytest.raises(kind, match=message):
        run(small(tmp_path / "runs", **changes))
    assert not (tmp_path / "runs").exists()


def test_a_file_where_the_output_folder_should_be_is_an_error(tmp_path):
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(OSError, match="runs"):
        run(small(tmp_path / "runs"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_folder_that_cannot_be_written_any_more_is_a_clear_error(tmp_path, monkeypatch, number):
    """Full or read-only: the log and the metrics are the first to notice."""
    config = small(tmp_path)

    def fail(self, line):
        if "step 8" in line:
            raise OSError(number, os.strerror(number))
        original(self, line)

    original = Appender.add
    with monkeypatch.context() as patch:
        patch.setattr(Appender, "add", fail)
        with pytest.raises(CheckpointError, match="cannot be written at step 8: .*and resume"):
            run(config)
    assert Checkpoints(folder_of(config) / "checkpoints").steps() == [3, 6]
    assert resume(folder_of(config)).steps == 12


def test_what_the_caller_had_set_comes_back(tmp_path):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(False)
        run(small(tmp_path, steps=1, threads=1))
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(threads)


def test_the_folder_holds_everything_the_documentation_names(tmp_path):
    config = small(tmp_path, steps=4, data=DIGITS, tracking=TrackingConfig(log_every=2),
                   checkpoint=CheckpointConfig(every=2, keep=1))  # fmt: skip
    run(config)
    names = sorted(path.name for path in folder_of(config).iterdir())
    assert names == [
        ".lock", "checkpoints", "config.yaml", "env.json", "events", "log.txt", "metrics.jsonl",
        "result.json",
    ]  # fmt: skip
    kept = sorted(path.name for path in (folder_of(config) / "checkpoints").iterdir())
    assert kept == ["best", "step-00000004"]
    assert any((folder_of(config) / "events").iterdir())
    log = (folder_of(config) / "log.txt").read_text()
    assert "step 4/4" in log
    assert "done: test accuracy" in log


def test_a_signal_during_the_final_evaluation_is_obeyed_after_the_result_is_written(
    tmp_path, monkeypatch
):
    make = train_run.make_result

    def make_and_be_told(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return make(*args)

    monkeypatch.setattr(train_run, "make_result", make_and_be_told)
    config = small(tmp_path, steps=2)
    with pytest.raises(Interrupted) as stop:
        run(config)
    assert stop.value.exit_code == 143
    assert RunResult.read(folder_of(config)).steps == 2
