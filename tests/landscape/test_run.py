"""Landscapes of runs, and the samples they are computed on."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from bitcycle.landscape import Grid, Landscape, RunSurface, compute, prepare
from bitcycle.landscape import run as run_module
from bitcycle.landscape.run import FirstSamples, num_missing, point_file, read_finished
from bitcycle.precision import Precision
from bitcycle.tasks import TASKS, DataConfig, ModelConfig
from bitcycle.train import PrecisionConfig, run
from bitcycle.train.checkpoint import CheckpointError
from bitcycle.train.evaluate import evaluate, evaluate_run
from bitcycle.train.session import build_session
from tests.train.small import files_below, float32, folder_of, lstm, small, write_words

# -- runs -----------------------------------------------------------------------------------------


GRID = Grid(num=3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    data = DataConfig(subset=160, batch_size=32, eval_batch_size=64)
    return Path(run(small(tmp_path_factory.mktemp("runs"), data=data)).directory)


def surface(finished, **options):
    return RunSurface(directory=str(finished), **{"samples": 100, **options})


@pytest.mark.parametrize("precision", ["high", "w4a4"])
def test_with_observed_ranges_the_centre_is_the_runs_evaluation_to_the_bit(finished, precision):
    found = prepare(surface(finished, samples=None, ranges="observed", precision=precision), GRID)
    row = evaluate_run(finished, split="train", precision=precision)
    assert found.center == row["metrics"]["loss"]
    assert found.precision == row["precision"]
    assert found.num_samples == 160


def test_ranges_of_each_batch_are_the_default_and_differ_by_definition(finished):
    both = [prepare(surface(finished, **o), GRID).center for o in ({}, {"ranges": "observed"})]
    assert both[0] != both[1]
    assert both[0] == pytest.approx(both[1], rel=0.1)
    full = [
        prepare(surface(finished, precision="full", **o), GRID).center
        for o in ({}, {"ranges": "observed"})
    ]
    assert full[0] == full[1]  # no activation is put on a range


def test_nothing_but_the_numbers_is_written_and_settings_come_back(finished, tmp_path):
    before, threads = files_below(finished), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = compute(prepare(surface(finished), GRID), tmp_path / "landscape.json")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert files_below(finished) == before
    assert [path.name for path in tmp_path.iterdir()] == ["landscape.json"]
    assert Landscape.read(tmp_path / "landscape.json") == found
    assert found.origin["threads"] == 1  # the run's own


def numbers(path):
    """All of a file but how long it took."""
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "seconds"}


def test_an_interrupted_computation_resumes_and_equals_an_uninterrupted_one(
    finished, tmp_path, monkeypatch
):
    prepared = prepare(surface(finished), GRID)
    target = tmp_path / "landscape.json"
    expected = compute(prepared, tmp_path / "undisturbed.json")

    def stop(done):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute(prepared, target, advance=stop)
    assert not target.exists()
    again = prepare(surface(finished), GRID)
    assert num_missing(again, target) == 5
    asked = []
    original = run_module.compute_points
    monkeypatch.setattr(
        run_module, "compute_points",
        lambda *parts, **more: asked.extend(parts[2]) or original(*parts, **more),
    )  # fmt: skip
    assert compute(again, target) == expected
    assert len(asked) == 5
    assert numbers(target) == numbers(tmp_path / "undisturbed.json")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["landscape.json",
                                                                 "undisturbed.json"]  # fmt: skip
    assert num_missing(again, target) == 0
    assert compute(again, target) == expected
    assert len(asked) == 5


def test_points_of_other_settings_are_kept_apart(finished, tmp_path):
    one, target = prepare(surface(finished), GRID), tmp_path / "landscape.json"
    compute(one, target)
    assert read_finished(one, target) is not None
    for changes in ({"seed": 1}, {"samples": 50}, {"precision": "w4a4"}, {"ranges": "observed"}):
        other = prepare(surface(finished, **changes), GRID)
        assert point_file(one, target).path != point_file(other, target).path
        assert read_finished(other, target) is None


def test_what_cannot_be_is_an_error(finished, tmp_path):
    with pytest.raises(ValueError, match="ranges"):
        surface(finished, ranges="none")
    with pytest.raises(ValueError, match=r"threads \(0\)"):
        surface(finished, threads=0)
    with pytest.raises(ValueError, match="is not a run"):
        prepare(surface(tmp_path), GRID)
    with pytest.raises(CheckpointError, match="no best checkpoint"):
        prepare(surface(finished, checkpoint="best"), GRID)
    copy = shutil.copytree(finished, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(CheckpointError, match="no last checkpoint"):
        prepare(surface(copy), GRID)


def test_a_run_that_never_observed_ranges_has_a_landscape_but_not_on_them(tmp_path):
    config = small(tmp_path, steps=2, precision=PrecisionConfig(backward=8))
    run(config)
    assert prepare(surface(folder_of(config), precision="w4a4"), GRID).precision == "w4a4"
    with pytest.raises(ValueError, match="never observed in fc1"):
        prepare(surface(folder_of(config), precision="w4a4", ranges="observed"), GRID)


@pytest.mark.slow
def test_processes_give_the_numbers_of_one(finished, tmp_path):
    grid = Grid(num=5)
    prepared = prepare(surface(finished), grid)
    alone = compute(prepared, tmp_path / "alone.json")
    assert compute(prepared, tmp_path / "together.json", jobs=2) == alone


# -- training samples -----------------------------------------------------------------------------


CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def task():
    model = ModelConfig(name="digits_mlp", options={"width": 8})
    return TASKS["images"](model, DataConfig(subset=300, eval_batch_size=128))


@pytest.mark.parametrize(("num", "sizes"), [(128, [128]), (200, [128, 72]), (None, [128, 128, 44])])
def test_samples_are_counted_exactly(task, num, sizes):
    first = FirstSamples(task, num, CPU)
    assert [len(batch.inputs) for batch in first] == sizes
    assert [len(batch.targets) for batch in first] == sizes
    assert first.num_samples == sum(sizes)
    whole = next(iter(task.eval_batches("train")))
    assert torch.equal(next(iter(first)).inputs, whole.inputs[: sizes[0]])


def test_the_mean_loss_of_all_is_the_evaluated_one_to_the_bit(tmp_path):
    session = build_session(small(tmp_path, precision=float32()))
    expected = evaluate(session.task, session.model, "train", Precision(), device=CPU)
    session.model.eval()
    with torch.no_grad():
        found = FirstSamples(session.task, None, CPU).mean_loss(session.model)
    assert found == expected["loss"]


@pytest.mark.filterwarnings("ignore::bitcycle.warnings.BitcycleWarning")
def test_windows_of_a_text_come_whole_and_state_starts_anew_in_every_pass(tmp_path):
    session = build_session(lstm(tmp_path / "runs", write_words(tmp_path / "text")))
    session.model.eval()
    first = FirstSamples(session.task, 6, CPU)
    assert [batch.inputs.shape for batch in first] == [(5, 4), (5, 4)]  # two windows, four streams
    assert first.num_samples == 8
    with torch.no_grad():
        assert first.mean_loss(session.model) == first.mean_loss(session.model)


def test_no_sample_is_an_error(task):
    with pytest.raises(ValueError, match=r"samples \(0\)"):
        FirstSamples(task, 0, CPU)
