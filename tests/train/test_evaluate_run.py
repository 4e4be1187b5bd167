"""`evaluate_run`: a run's weights at explicit bits, from its folder, which it only reads."""

from pathlib import Path

import pytest

from bitcycle.tasks import DataConfig
from bitcycle.train import EvalConfig, PrecisionConfig, run
from bitcycle.train.checkpoint import CheckpointError
from bitcycle.train.evaluate import evaluate_run
from tests.train.small import files_below, float32, folder_of, metrics_of, small

VALIDATED = DataConfig(subset=160, batch_size=32, eval_batch_size=128, validation=40)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = small(tmp_path_factory.mktemp("runs"), data=VALIDATED, eval=EvalConfig(every=3))
    return run(config)


def test_at_the_runs_own_bits_it_gives_the_runs_result(finished):
    row = evaluate_run(finished.directory)
    assert row["metrics"] == finished.final
    assert (row["step"], row["split"], row["precision"]) == (12, "test", "w8a8")


def test_the_best_checkpoint_gives_the_best_of_the_result(finished):
    row = evaluate_run(finished.directory, checkpoint="best")
    assert row["step"] == finished.best["step"]
    assert row["metrics"].items() <= finished.best.items()


def test_the_validation_split_gives_the_last_line_of_the_metrics(finished):
    row = evaluate_run(finished.directory, split="validation")
    last = metrics_of(Path(finished.directory))[-1]
    assert row["metrics"].items() <= last.items()


def test_it_writes_nothing_not_even_into_a_run_that_is_being_written(finished):
    temporary = Path(finished.directory) / "checkpoints" / "step-00000099.tmp"
    temporary.mkdir()
    (temporary / "model.json").write_text("{")
    before = files_below(temporary.parents[1])
    evaluate_run(finished.directory)
    evaluate_run(finished.directory, checkpoint="best")
    assert files_below(temporary.parents[1]) == before


def test_ranges_that_nobody_observed_are_refused(tmp_path):
    """Only errors were quantized: activations have no ranges to be evaluated with."""
    config = small(tmp_path, steps=2, precision=PrecisionConfig(backward=8))
    run(config)
    with pytest.raises(ValueError, match=r"never observed in fc1, fc2, fc3.*--precision full"):
        evaluate_run(folder_of(config), precision="w4a4")
    assert evaluate_run(folder_of(config), precision="full")["precision"] == "fp32"
    assert evaluate_run(folder_of(config))["precision"] == "fp32"  # the schedule's top


def test_overrides_may_change_what_differs_between_machines(finished):
    row = evaluate_run(finished.directory, overrides=["--data.eval_batch_size", "50"])
    assert row["metrics"]["accuracy"] == pytest.approx(finished.final["accuracy"])


def test_without_a_validation_split_it_cannot_be_asked_for(tmp_path):
    config = small(tmp_path, steps=1, precision=float32())
    run(config)
    with pytest.raises(ValueError, match="has no validation split"):
        evaluate_run(folder_of(config), split="validation")
    with pytest.raises(CheckpointError, match="has no best checkpoint"):
        evaluate_run(folder_of(config), checkpoint="best")
