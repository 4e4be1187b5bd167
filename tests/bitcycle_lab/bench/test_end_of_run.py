"""benchmarks/end_of_run.py on tiny runs."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import end_of_run as benchmark
from bitcycle.model_precision import at_precision
from bitcycle_lab.recipes import with_bits
from bitcycle_lab.study.results import RunStatus
from bitcycle_lab.study.study import Method
from bitcycle_lab.train.config import CheckpointConfig, EvalConfig, TrackingConfig
from bitcycle_lab.train.final_evaluation import weights_digest
from bitcycle_lab.train.result import RunResult
from bitcycle_lab.train.run import run
from bitcycle_lab.train.run_directory import RunDirectory


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four cycles of six steps: (configuration, folder, result)."""
    config = replace(
        with_bits("digits", "CPT 3-8/8", cycles=4),
        steps=24,
        eval=EvalConfig(every=0.25),
        checkpoint=CheckpointConfig(every=0.25, keep=4),
        tracking=TrackingConfig(tensorboard=False),
        output=str(tmp_path_factory.mktemp("runs")),
    )
    result = run(config)
    directory = RunDirectory(result.directory)
    return directory.read_config(), directory, result


def last_session(trained):
    config, directory, result = trained
    return benchmark.load_session(config, directory, result.steps)


@pytest.mark.parametrize(
    ("num_final", "start", "text"),
    [
        (1, 7750, "seq(CR:3-8:31@0.96875, 8)"),
        (4, 7000, "seq(CR:3-8:28@0.875, 8)"),
        (8, 6000, "seq(CR:3-8:24@0.75, 8)"),
    ],
)
def test_the_last_cycles_are_held_at_the_highest_bits(num_final, start, text):
    assert benchmark.hold_last_cycles("CR:3-8:32", num_final, 8000) == (start, text)


@pytest.mark.parametrize(
    ("forward", "steps", "part"),
    [("CR:3-8:1", 100, "CR:3-8:1"), ("8", 100, "8"), ("CR:3-8:32", 500, "500")],
)
def test_cycles_that_cannot_be_held_are_refused(forward, steps, part):
    with pytest.raises(ValueError, match=part):
        benchmark.hold_last_cycles(forward, 1, steps)


def test_the_last_cycle_trained_again_gives_the_run_exactly(trained):
    config, directory, result = trained
    ends = benchmark.repeat_end(config, directory)
    assert ends == {"run": result.value, "again": result.value}


def test_other_weights_than_those_of_the_run_are_an_error(trained, monkeypatch):
    config, directory, result = trained
    other = replace(result, weights_sha256="0" * 64)
    monkeypatch.setattr(RunResult, "read", lambda path: other)
    with pytest.raises(ValueError, match="18"):
        benchmark.repeat_end(config, directory)


def test_another_end_is_the_end_of_a_whole_run_with_that_schedule(trained):
    config, directory, result = trained
    start, forward = benchmark.hold_last_cycles(config.precision.forward, 1, 24)
    precision = replace(config.precision, forward=forward)
    held = replace(config, precision=precision, name="held")
    session = benchmark.train_to_end(held, directory, start)
    assert session.step == 24
    assert weights_digest(session.model) == run(held).weights_sha256 != result.weights_sha256


def test_test_and_training_images_are_evaluated_as_the_run_did(trained):
    metrics = benchmark.measure(last_session(trained), num_batches=2)
    assert metrics["test"] == {name: trained[2].final[name] for name in ("accuracy", "loss")}
    assert list(metrics) == ["test", "train", "augmented"]
    assert metrics["train"] != metrics["augmented"]


def test_new_statistics_are_means_over_batches_and_leave_the_ranges(trained):
    session = last_session(trained)
    model, means = session.model.eval(), []
    with torch.no_grad(), at_precision(model, benchmark.highest_bits(session)):
        for batch in benchmark.augmented_batches(session, 3):
            means.append(model.conv1(batch.inputs).mean(dim=(0, 2, 3)))
    ranges = model.conv1.act_range.clone()
    before = model.bn1.running_mean.clone()
    benchmark.renew_norms(session, 3)
    torch.testing.assert_close(model.bn1.running_mean, torch.stack(means).mean(0))
    assert not torch.equal(model.bn1.running_mean, before)
    assert torch.equal(model.conv1.act_range, ranges)
    assert (model.bn1.momentum, model.bn1.training) == (0.1, False)


def test_new_ranges_are_means_over_batches_and_leave_the_statistics(trained):
    session = last_session(trained)
    model, before = session.model, session.model.bn1.running_mean.clone()
    benchmark.renew_ranges(session, 3)
    images = [batch.inputs for batch in benchmark.augmented_batches(session, 3)]
    number, low, size = model.conv1.act_range[0].tolist()
    assert number == 3
    assert low == pytest.approx(sum(float(x.min()) for x in images) / 3)
    assert size == pytest.approx(sum(float(x.max() - x.min()) for x in images) / 3)
    assert torch.equal(model.bn1.running_mean, before)


def test_a_second_call_measures_what_is_missing(trained, monkeypatch, tmp_path):
    config, directory, result = trained
    method = Method(label="CPT 3-8/8, N = 32", config=config)
    status = RunStatus(
        method=method, config=config, directory=directory.path, state="done", result=result
    )
    monkeypatch.setattr(benchmark, "NUM_FINAL_CYCLES", (1,))
    path, saved = tmp_path / "end-of-run.json", []
    found = {**benchmark.read_found(path, 24), "num_batches": 2}
    benchmark.measure_run(status, found, (), lambda: saved.append(json.dumps(found)))
    [entry] = found["runs"]
    assert [step for step, _ in entry["curve"]] == [6, 12, 18, 24]
    assert entry["curve"][-1][1] == result.value
    assert list(entry["variants"]) == [
        "as trained", "new batch norm", "new batch norm and ranges", "8 bits in the last cycle"
    ]  # fmt: skip
    assert found["control"]["again"] == result.value
    assert len(saved) == 3  # the end, the control, another end
    path.write_text(saved[1])
    found = benchmark.read_found(path, 24)
    monkeypatch.setattr(benchmark, "measure_end", None)
    monkeypatch.setattr(benchmark, "repeat_end", None)
    benchmark.measure_run(status, found, (), lambda: None)
    assert found == json.loads(saved[2])


def test_a_run_that_was_trained_again_is_measured_again(trained):
    old = {"method": "CPT", "seed": 0, "weights_sha256": "old", "variants": {"as trained": {}}}
    found = {"control": {"seed": 0}, "runs": [old]}
    entry = benchmark.entry_of(found, "CPT", 0, trained[2])
    assert entry["variants"] == {}
    assert entry["weights_sha256"] == trained[2].weights_sha256
    assert (found["control"], len(found["runs"])) == (None, 1)


def test_a_file_of_runs_of_another_length_is_refused(tmp_path):
    path = tmp_path / "end-of-run.json"
    path.write_text(json.dumps(benchmark.read_found(path, 500)))
    with pytest.raises(ValueError, match="8000"):
        benchmark.read_found(path, 8000)
