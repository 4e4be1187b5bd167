"""Landscapes of runs, and the samples they are computed on."""

import shutil
from pathlib import Path

import pytest
import torch

from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.landscape import run_landscape
from bitcycle_lab.landscape.surface import first_batches
from bitcycle_lab.tasks import TASKS, DataConfig, ModelConfig
from bitcycle_lab.train import PrecisionConfig, run
from bitcycle_lab.train.evaluate import evaluate_batches, evaluate_run
from bitcycle_lab.train.session import build_session
from tests.bitcycle_lab.train.small import files_below, folder_of, lstm, small, write_words

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    data = DataConfig(subset=160, batch_size=32, eval_batch_size=64)
    return Path(run(small(tmp_path_factory.mktemp("runs"), data=data)).directory)


def landscape(finished, **options):
    return run_landscape(finished, **{"grid": 3, "samples": 100, **options})


@pytest.mark.parametrize("precision", ["high", "w4a4", "full"])
def test_with_observed_ranges_the_centre_is_the_runs_evaluation_to_the_bit(finished, precision):
    found = landscape(finished, samples=None, ranges="observed", precision=precision)
    row = evaluate_run(finished, split="train", precision=precision)
    assert found.center == row["metrics"]["loss"]
    assert found.precision == row["precision"]


def test_ranges_of_each_batch_are_the_default_and_differ_by_definition(finished):
    both = landscape(finished).center, landscape(finished, ranges="observed").center
    assert both[0] != both[1]
    assert both[0] == pytest.approx(both[1], rel=0.1)


def test_nothing_is_written_but_the_file_and_settings_come_back(finished, tmp_path):
    before, threads = files_below(finished), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = landscape(finished, file=tmp_path / "landscape.json")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert files_below(finished) == before
    assert [path.name for path in tmp_path.iterdir()] == ["landscape.json"]
    assert found.settings["threads"] == 1  # the run's own
    assert (found.label, found.settings["step"]) == ("small-seed0", 12)


def test_what_cannot_be_is_an_error(finished, tmp_path):
    with pytest.raises(ValueError, match="0"):
        landscape(finished, samples=0)
    with pytest.raises(ValueError, match="is not a run"):
        landscape(tmp_path)
    with pytest.raises(FileNotFoundError, match="best"):
        landscape(finished, checkpoint="best")
    copy = shutil.copytree(finished, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(FileNotFoundError, match="no checkpoint yet"):
        landscape(copy)


def test_weights_of_an_unfinished_run_are_said_to_be(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "result.json").unlink()
    with pytest.warns(BitcycleWarning, match="step 12"):
        landscape(copy)


def test_a_run_that_never_observed_ranges_has_a_landscape_but_not_on_them(tmp_path):
    config = small(tmp_path, steps=2, precision=PrecisionConfig(backward=8))
    run(config)
    assert landscape(folder_of(config), precision="w4a4").precision == "w4a4"
    with pytest.raises(ValueError, match="fc1"):
        landscape(folder_of(config), precision="w4a4", ranges="observed")


@pytest.mark.parametrize(("num", "sizes"), [(128, [128]), (200, [128, 72]), (999, [128, 128, 44])])
def test_samples_are_counted_exactly(num, sizes):
    model = ModelConfig(name="digits_mlp", options={"width": 8})
    task = TASKS["images"](model, DataConfig(subset=300, eval_batch_size=128))
    first = list(first_batches(task, num))
    assert [(len(batch.inputs), len(batch.targets)) for batch in first] == [(n, n) for n in sizes]
    whole = next(iter(task.eval_batches("train")))
    assert torch.equal(first[0].inputs, whole.inputs[: sizes[0]])


@pytest.mark.filterwarnings("ignore::bitcycle.warnings.BitcycleWarning")
def test_windows_of_a_text_come_whole_and_state_starts_anew_in_every_pass(tmp_path):
    session = build_session(lstm(tmp_path / "runs", write_words(tmp_path / "text")))
    session.model.eval()
    first = list(first_batches(session.task, 6))
    assert [batch.inputs.shape for batch in first] == [(5, 4), (5, 4)]  # two windows, four streams
    with torch.no_grad():
        losses = {
            evaluate_batches(session.task, session.model, first, CPU)["loss"] for _ in range(2)
        }
    assert len(losses) == 1
