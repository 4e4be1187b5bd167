"""Evaluation at explicit bits: of a model in training, and of a run from its folder."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

import bitcycle as bc
from bitcycle.precision import Precision
from bitcycle_lab.tasks import DataConfig, ModelConfig
from bitcycle_lab.train import EvalConfig, PrecisionConfig, run
from bitcycle_lab.train.evaluate import (
    describe_precision,
    eval_precision,
    evaluate,
    evaluate_run,
    layers_without_ranges,
)
from bitcycle_lab.train.loop import train_step
from bitcycle_lab.train.session import build_session, preserve_torch_settings
from tests.bitcycle_lab.train.small import (
    files_below,
    float32,
    folder_of,
    lstm,
    metrics_of,
    small,
    write_words,
)


def trained(config, steps=3):
    with preserve_torch_settings():
        session = build_session(config)
        session.model.train()
        for _ in range(steps):
            micro = [session.batches.batch_at(session.step, i) for i in range(config.accumulate)]
            train_step(session, micro)
            session.step += 1
    return session


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    resnet = ModelConfig(name="digits_resnet", options={"width": 2})
    return trained(small(tmp_path_factory.mktemp("runs"), model=resnet))


@pytest.mark.parametrize(
    ("asked", "bits"),
    [
        ("high", "w8a8e6"),  # the top of CR:3-8:2
        ("scheduled", "w6a6e6"),  # step 3 of 12: the middle of the first cycle, 5.5
        ("full", "fp32"),
        ("w4a4", "w4a4"),
    ],
)
def test_it_gives_what_at_precision_gives(session, asked, bits):
    precision = eval_precision(asked, session.scheduler)
    assert str(precision) == bits
    found = evaluate(session.task, session.model, "test", precision, device=session.device)
    hits = 0
    with torch.no_grad(), bc.at_precision(session.model.eval(), bits):
        for batch in session.task.eval_batches("test"):
            hits += int((session.model(batch.inputs).argmax(1) == batch.targets).sum())
    session.model.train()
    assert found["accuracy"] == pytest.approx(100 * hits / 360)


def everything(session):
    layers = [m for m in session.model.modules() if hasattr(m, "precision")]
    return {
        "state": {k: v.clone() for k, v in session.model.state_dict().items()},
        "control": [layer.control.clone() for layer in layers],
        "torch": torch.get_rng_state(),
        "carried": [part.clone() for state in getattr(session.task, "carried", {}).values()
                    for part in state],
        "plain": (
            [m.training for m in session.model.modules()],
            [layer.precision for layer in layers],
            torch.is_grad_enabled(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["images", "language"])
def test_it_leaves_mode_bits_ranges_noise_generators_and_carried_state_alone(
    session, tmp_path, kind
):
    if kind == "language":
        session = trained(lstm(tmp_path, write_words(tmp_path / "text")))
        assert session.task.carried
    before = everything(session)
    evaluate(session.task, session.model, "test", Precision(weight=4, act=4), device=session.device)
    after = everything(session)
    assert after.pop("plain") == before.pop("plain")
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_carried_state_of_the_training_does_not_reach_the_evaluation(tmp_path):
    session = trained(lstm(tmp_path, write_words(tmp_path / "text")))
    with_state = evaluate(session.task, session.model, "test", Precision(), device=session.device)
    session.task.start_pass()
    without = evaluate(session.task, session.model, "test", Precision(), device=session.device)
    assert with_state == without


def test_an_error_inside_restores_bits_and_mode(session):
    broken = type("Broken", (), {
        "state_dict": lambda self: {}, "start_pass": lambda self: None,
        "eval_batches": lambda self, *a, **o: (_ for _ in ()).throw(RuntimeError("no data")),
    })()  # fmt: skip
    before = everything(session)["plain"]
    with pytest.raises(RuntimeError, match="no data"):
        evaluate(broken, session.model, "test", Precision(weight=2), device=session.device)
    assert everything(session)["plain"] == before


def test_only_the_bits_of_a_forward_pass_are_described(session):
    assert describe_precision(session.model, Precision.parse("FW4/BW8")) == "w4a4"
    layers = {"fc": Precision(weight=8), "conv1": Precision(weight=4)}
    assert describe_precision(session.model, layers).count("/") >= 1


def test_layers_are_unobserved_until_they_were_trained(tmp_path, session):
    fresh = trained(small(tmp_path), steps=0)
    assert layers_without_ranges(fresh.model) == ["fc1", "fc2", "fc3"]
    assert layers_without_ranges(session.model) == []


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
    with pytest.raises(ValueError, match="fc1, fc2, fc3"):
        evaluate_run(folder_of(config), precision="w4a4")
    assert evaluate_run(folder_of(config), precision="full")["precision"] == "fp32"
    assert evaluate_run(folder_of(config))["precision"] == "fp32"  # the schedule's top


def test_overrides_may_change_what_differs_between_machines(finished):
    row = evaluate_run(finished.directory, overrides=["--data.eval_batch_size", "50"])
    assert row["metrics"]["accuracy"] == pytest.approx(finished.final["accuracy"])


def test_without_a_validation_split_it_cannot_be_asked_for(tmp_path):
    config = small(tmp_path, steps=1, precision=float32())
    run(config)
    with pytest.raises(ValueError, match="validation"):
        evaluate_run(folder_of(config), split="validation")
    with pytest.raises(FileNotFoundError, match="best"):
        evaluate_run(folder_of(config), checkpoint="best")
