"""Evaluation is what at_precision gives, and leaves no trace in the training around it."""

import random

import numpy as np
import pytest
import torch

import bitcycle as bc
from bitcycle.precision import Precision
from bitcycle.tasks import ModelConfig
from bitcycle.train.evaluate import (
    describe_precision,
    eval_precision,
    evaluate,
    unobserved_layers,
)
from bitcycle.train.loop import _train_step
from bitcycle.train.session import build_session, kept_settings
from tests.train.small import lstm, small, write_words


def trained(config, steps=3):
    with kept_settings():
        session = build_session(config)
        session.model.train()
        for _ in range(steps):
            micro = [session.batches.batch_at(session.step, i) for i in range(config.accumulate)]
            _train_step(session, micro)
            session.step += 1
    return session


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    resnet = ModelConfig(name="digits_resnet", options={"width": 2})
    return trained(small(tmp_path_factory.mktemp("runs"), model=resnet))


@pytest.mark.parametrize(
    ("asked", "bits"),
    [
        ("high", "w8a8e6g6"),  # the top of CR:3-8:2
        ("scheduled", "w6a6e6g6"),  # step 3 of 12: the middle of the first cycle, 5.5
        ("full", "fp32"),
        ("w4a4", "w4a4"),
    ],
)
def test_it_gives_what_at_precision_gives(session, asked, bits):
    precision = eval_precision(asked, session.bits)
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
    assert unobserved_layers(fresh.model) == ["fc1", "fc2", "fc3"]
    assert unobserved_layers(session.model) == []
