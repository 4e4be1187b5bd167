"""`auto` in a run: found by a test that leaves no trace but its result and its cost."""

import json
import math
import os
import signal

import pytest
import torch

from bitcycle.range_test import RangeTestError
from bitcycle.tasks import DataConfig, ModelConfig
from bitcycle.train import (
    EvalConfig,
    PrecisionConfig,
    RangeTestConfig,
    RunResult,
    SwaConfig,
    resume,
    run,
)
from bitcycle.train import range_test as find_low
from bitcycle.train.checkpoint import Checkpoints
from bitcycle.train.evaluate import evaluate_run
from bitcycle.train.run import resume_or_run
from bitcycle.train.session import build_session
from bitcycle.train.signals import Interrupted
from tests.train.small import (
    Killed,
    folder_of,
    kill_before_step,
    lstm,
    metrics_of,
    small,
    traces,
    write_words,
)

TEST = RangeTestConfig(steps_per_precision=10, window=3, threshold=3.0)
DIGITS = DataConfig(subset=160, batch_size=32, eval_batch_size=128, validation=40)


def auto(output, make=small, **changes):
    precision = PrecisionConfig(forward="CR:auto-8:2", backward=6)
    return make(output, **{"precision": precision, "range_test": TEST, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    config = auto(tmp_path_factory.mktemp("whole"), data=DIGITS, eval=EvalConfig(every=2))
    run(config)
    return config


def kill_in_test(patch, number):
    """The run dies when the test is about to take this 0-based step."""
    original, steps = find_low.update, iter(range(10_000))

    def dying(*arguments, **options):
        if next(steps) == number:
            raise Killed
        original(*arguments, **options)

    patch.setattr(find_low, "update", dying)


def test_the_run_is_the_one_whose_lower_end_was_typed(tmp_path, whole):
    """The same weights to the bit: the test has left nothing behind."""
    found = RunResult.read(folder_of(whole))
    low = found.range_test["test"]["low"]
    forward = f"CR:{low}-8:2"
    typed = small(tmp_path, data=DIGITS, eval=EvalConfig(every=2),
                  precision=PrecisionConfig(forward=forward, backward=6))  # fmt: skip
    result = run(typed)
    assert result.range_test is None
    assert result.weights_sha256 == found.weights_sha256
    assert (result.final, result.best) == (found.final, found.best)
    bits = [line["bits"] for line in metrics_of(folder_of(typed)) if line["kind"] == "train"]
    assert bits == [x["bits"] for x in metrics_of(folder_of(whole)) if x["kind"] == "train"]
    assert found.cost["range_test"] == sum(found.range_test["bitops"].values()) > 0
    assert found.cost["bitops"] == result.cost["bitops"] + found.cost["range_test"]
    assert sum(found.cost["by_matmul"].values()) == found.cost["bitops"]
    share = found.cost["relative_to_static_top"] / result.cost["relative_to_static_top"]
    assert share == pytest.approx(found.cost["bitops"] / result.cost["bitops"])


def test_the_lower_end_is_what_the_curve_says_and_the_test_stops_there(whole):
    test = RunResult.read(folder_of(whole)).range_test["test"]
    gains = {int(bits): gain for bits, gain in test["curve"]["gains"].items()}
    assert list(gains) == list(range(2, test["low"] + 1))
    assert gains[test["low"]] > 3.0
    assert all(gain <= 3.0 for bits, gain in gains.items() if bits < test["low"])


def test_it_is_logged_in_metrics_log_and_checkpoint(whole):
    folder = folder_of(whole)
    test = RunResult.read(folder).range_test
    line, *others = metrics_of(folder)
    assert (line["step"], line["kind"], line["low"]) == (0, "range_test", test["test"]["low"])
    assert all(other["kind"] != "range_test" for other in others)
    log = (folder / "log.txt").read_text()
    assert f"the lower end is {line['low']} bits, forward CR:{line['low']}-8:2" in log
    step, state = Checkpoints(folder / "checkpoints").load_newest()
    assert (step, state["run"]["range_test"]) == (12, test)


def test_a_run_killed_during_the_test_ends_like_the_one_that_was_not(tmp_path, monkeypatch, whole):
    config = auto(tmp_path, data=DIGITS, eval=EvalConfig(every=2))
    with monkeypatch.context() as patch:
        kill_in_test(patch, 5)
        with pytest.raises(Killed):
            run(config)
    torch.manual_seed(5)  # another process would not have this one's generators
    resume(folder_of(config))
    assert traces(folder_of(config)) == traces(folder_of(whole))


@pytest.mark.parametrize("where", ["before its checkpoint", "step 5"])
def test_a_run_killed_after_the_test_ends_like_the_one_that_was_not(
    tmp_path, monkeypatch, whole, where
):
    config = auto(tmp_path, data=DIGITS, eval=EvalConfig(every=2))

    def die(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        if where == "before its checkpoint":
            patch.setattr(find_low, "save", die)
        else:
            kill_before_step(patch, int(where[-1]))
        with pytest.raises(Killed):
            run(config)
    torch.manual_seed(1)
    if where != "before its checkpoint":
        monkeypatch.setattr(find_low, "update", die)  # the test is not repeated
    resume_or_run(config)
    assert traces(folder_of(config)) == traces(folder_of(whole))


VARIANTS = {
    "micro-batches and reset": lambda out, _: auto(
        out, accumulate=2,
        range_test=RangeTestConfig(steps_per_precision=10, threshold=3.0, reset=True),
    ),
    "batch norm, averaged weights": lambda out, _: auto(
        out, model=ModelConfig(name="digits_resnet", options={"width": 2}),
        swa=SwaConfig(start=0.25, every=2),
    ),
    "recurrent with dropout": lambda out, root: auto(
        out, lambda o, **c: lstm(o, root, **c),
        precision=PrecisionConfig(forward="CR:auto-8:2", backward=6, only=("decoder",)),
        range_test=RangeTestConfig(steps_per_precision=10, threshold=0.001),
    ),
}  # fmt: skip


OFTEN = {"micro-batches and reset"}


@pytest.mark.parametrize(
    "variant",
    [v if v in OFTEN else pytest.param(v, marks=pytest.mark.slow) for v in VARIANTS],
)
def test_killed_in_the_test_and_again_in_training_it_ends_the_same(tmp_path, monkeypatch, variant):
    root = write_words(tmp_path / "text")
    reference = VARIANTS[variant](tmp_path / "whole", root)
    broken = VARIANTS[variant](tmp_path / "broken", root)
    run(reference)
    with monkeypatch.context() as patch:
        kill_in_test(patch, 4)
        with pytest.raises(Killed):
            run(broken)
    with monkeypatch.context() as patch:
        kill_before_step(patch, 5)
        with pytest.raises(Killed):
            resume(folder_of(broken))
    resume(folder_of(broken))
    assert traces(folder_of(broken)) == traces(folder_of(reference))


def test_a_signal_in_the_test_stops_the_run_which_can_be_resumed(tmp_path, monkeypatch, whole):
    config = auto(tmp_path, data=DIGITS, eval=EvalConfig(every=2))
    original, steps = find_low.update, iter(range(10_000))

    def signalled(*arguments, **options):
        if next(steps) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(find_low, "update", signalled)
        with pytest.raises(Interrupted, match="stopped in the range test") as caught:
            run(config)
    assert caught.value.exit_code == 143
    assert next(steps) == 4  # that step was finished, no other began
    resume(folder_of(config))
    assert traces(folder_of(config)) == traces(folder_of(whole))


def test_a_model_that_cannot_learn_stops_the_run_with_the_curve(tmp_path):
    config = auto(tmp_path, range_test=RangeTestConfig(steps_per_precision=4, threshold=99.0))
    with pytest.raises(RangeTestError, match="does not learn at 2 to 8 bits") as caught:
        run(config)
    assert caught.value.curve.name == "accuracy"
    assert len(caught.value.curve.metric) == 28
    assert not (folder_of(config) / "result.json").exists()
    assert "does not learn at 2 to 8 bits" in (folder_of(config) / "log.txt").read_text()


def test_a_run_whose_cycle_is_too_short_fails_before_it_has_a_folder(tmp_path):
    config = auto(tmp_path, range_test=RangeTestConfig())
    with pytest.raises(ValueError, match=r"Set range_test\.steps_per_precision"):
        run(config)
    assert not folder_of(config).exists()


def test_evaluation_at_the_scheduled_bits_knows_the_lower_end(whole):
    """Step 12 ends a cycle, so the newest is at the top; the best may lie anywhere."""
    low = RunResult.read(folder_of(whole)).range_test["test"]["low"]
    best = evaluate_run(folder_of(whole), precision="scheduled", checkpoint="best")
    filled = small(".", data=DIGITS, precision=PrecisionConfig(forward=f"CR:{low}-8:2", backward=6))
    session = build_session(filled)
    bits = session.bits.precision_at(min(best["step"], 12))
    assert best["precision"] == str(bits.replace(error=None, grad=None))


def test_weights_with_bits_of_their_own_keep_them_in_the_test(tmp_path, monkeypatch):
    """Only what inherits forward is tested; errors have the bits of the first step."""
    config = auto(
        tmp_path,
        precision=PrecisionConfig(forward="CR:auto-8:2", weight=7, backward="LR:4-6:2"),
    )
    session = build_session(config)
    seen = find_low._precision_at(session, 3)
    assert str(seen) == "w7a3e4g4"


def test_training_that_diverges_in_the_test_is_no_gain(tmp_path, monkeypatch):
    """A loss that is not finite at 2 bits: the test goes on at 3 from where it began."""
    config = auto(tmp_path)
    original = find_low.update

    def diverging(session, *arguments, **options):
        original(session, *arguments, **options)
        if next(iter(session.model.modules())).training and _bits(session) == 2:
            session.window["loss"] = session.window["loss"] * math.nan

    monkeypatch.setattr(find_low, "update", diverging)
    result = run(config)
    curve = result.range_test["test"]["curve"]
    assert curve["gains"]["2"] is None
    assert curve["bits"].count(2) == 1
    assert result.range_test["test"]["low"] >= 3
    assert json.dumps(result.range_test, allow_nan=False)


def _bits(session):
    return next(m.precision.weight for m in session.model.modules() if hasattr(m, "precision"))
