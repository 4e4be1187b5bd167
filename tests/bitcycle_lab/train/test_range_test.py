"""The range test of a run: `auto` in a schedule, kill and resume, its settings, and on its own."""

import json
import math
import os
import signal
from dataclasses import replace

import pytest
import torch

from bitcycle.range_criteria import RangeTestError
from bitcycle_lab.tasks import TASKS, DataConfig, ModelConfig
from bitcycle_lab.train import (
    EvalConfig,
    PrecisionConfig,
    RangeTestConfig,
    RunResult,
    SwaConfig,
    range_test,
    resume,
    run,
)
from bitcycle_lab.train.checkpoint import Checkpoints
from bitcycle_lab.train.config_changes import find_changes
from bitcycle_lab.train.config_file import override
from bitcycle_lab.train.evaluate import evaluate_run
from bitcycle_lab.train.range_test import complete_settings, find_precision_range, forward_text
from bitcycle_lab.train.run import resume_or_run
from bitcycle_lab.train.run_directory import machine
from bitcycle_lab.train.session import build_session
from bitcycle_lab.train.signals import Interrupted
from tests.bitcycle_lab.train.small import (
    Killed,
    files_below,
    folder_of,
    kill_before_step,
    lstm,
    metrics_of,
    small,
    traces,
    write_words,
)

RELATIVE = RangeTestConfig(steps_per_precision=12, window=4)
PAPER = RangeTestConfig(steps_per_precision=10, window=3, threshold=3.0)
DIGITS = DataConfig(subset=160, batch_size=32, eval_batch_size=128, validation=40)


def auto(output, make=small, **changes):
    precision = PrecisionConfig(forward="CR:auto-8:2", backward=6)
    return make(output, **{"precision": precision, "range_test": PAPER, **changes})


def configured(tmp_path, forward="CR:3-8:2", **changes):
    precision = PrecisionConfig(forward=forward, backward=6)
    return small(tmp_path, **{"precision": precision, "range_test": PAPER, **changes})


@pytest.fixture(scope="module", params=[RELATIVE, PAPER], ids=["relative", "paper"])
def whole(request, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole")
    config = auto(output, data=DIGITS, eval=EvalConfig(every=2), range_test=request.param)
    run(config)
    return config


def kill_in_test(patch, number):
    """The run dies when the test is about to take this 0-based step."""
    original, steps = range_test.optimizer_step, iter(range(10_000))

    def dying(*arguments, **options):
        if next(steps) == number:
            raise Killed
        original(*arguments, **options)

    patch.setattr(range_test, "optimizer_step", dying)


# -- in a run -------------------------------------------------------------------------------------


def test_the_run_is_the_one_whose_lower_end_was_typed(tmp_path, whole):
    """The same weights to the bit: the test has left nothing behind."""
    found = RunResult.read(folder_of(whole))
    forward = f"CR:{found.range_test['test']['low']}-8:2"
    typed = replace(
        whole, output=str(tmp_path), precision=replace(whole.precision, forward=forward)
    )
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


def test_it_is_logged_in_metrics_log_and_checkpoint(whole):
    folder = folder_of(whole)
    test = RunResult.read(folder).range_test
    line, *others = metrics_of(folder)
    assert (line["step"], line["kind"], line["low"]) == (0, "range_test", test["test"]["low"])
    assert all(other["kind"] != "range_test" for other in others)
    log = (folder / "log.txt").read_text()
    steps = sum(len(each["metric"]) for each in test["test"]["runs"])
    assert f"{steps} steps" in log
    assert f"forward CR:{line['low']}-8:2" in log
    step, state = Checkpoints(folder / "checkpoints").load_newest()
    assert (step, state["run"]["range_test"]) == (12, test)


@pytest.mark.parametrize("where", ["in the test", "before its checkpoint", "step 5"])
def test_a_run_killed_in_or_after_the_test_ends_like_the_one_that_was_not(
    tmp_path, monkeypatch, whole, where
):
    config = replace(whole, output=str(tmp_path))

    def die(*arguments):
        raise Killed

    with monkeypatch.context() as patch:
        if where == "in the test":
            kill_in_test(patch, 5 if whole.range_test.is_paper else 29)
        elif where == "before its checkpoint":
            patch.setattr(range_test, "save_checkpoint", die)
        else:
            kill_before_step(patch, 5)
        with pytest.raises(Killed):
            run(config)
    torch.manual_seed(5)  # another process would not have this one's generators
    if where == "step 5":
        monkeypatch.setattr(range_test, "optimizer_step", die)  # the test is not repeated
    resume_or_run(config)
    assert traces(folder_of(config)) == traces(folder_of(whole))


VARIANTS = {
    "micro-batches": lambda out, _: auto(out, accumulate=2, range_test=RELATIVE),
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
OFTEN = {"micro-batches"}


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
    config = replace(whole, output=str(tmp_path))
    original, steps = range_test.optimizer_step, iter(range(10_000))

    def signalled(*arguments, **options):
        if next(steps) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(range_test, "optimizer_step", signalled)
        with pytest.raises(Interrupted, match="range test") as caught:
            run(config)
    assert caught.value.exit_code == 143
    assert next(steps) == 4  # that step was finished, no other began
    resume(folder_of(config))
    assert traces(folder_of(config)) == traces(folder_of(whole))


def test_a_model_that_cannot_learn_stops_the_run_with_the_table(tmp_path):
    config = auto(tmp_path, range_test=RangeTestConfig(steps_per_precision=4, threshold=99.0))
    with pytest.raises(RangeTestError, match="2 to 8 bits") as caught:
        run(config)
    assert (caught.value.test.name, caught.value.test.num_steps) == ("accuracy", 28)
    assert not (folder_of(config) / "result.json").exists()
    assert "2 to 8 bits passes" in (folder_of(config) / "log.txt").read_text()


def test_settings_that_make_no_test_fail_before_the_run_has_a_folder(tmp_path):
    for wrong in ({"low": 9}, {"high": 12}):
        config = auto(tmp_path, range_test=RangeTestConfig(**wrong))
        with pytest.raises(ValueError, match=f"{next(iter(wrong.values()))}.*8"):
            run(config)
        assert not folder_of(config).exists()


def test_evaluation_at_the_scheduled_bits_knows_the_lower_end(whole):
    """Step 12 ends a cycle, so the newest is at the top; the best may lie anywhere."""
    low = RunResult.read(folder_of(whole)).range_test["test"]["low"]
    best = evaluate_run(folder_of(whole), precision="scheduled", checkpoint="best")
    filled = small(".", data=DIGITS, precision=PrecisionConfig(forward=f"CR:{low}-8:2", backward=6))
    session = build_session(filled)
    bits = session.scheduler.precision_at(min(best["step"], 12))
    assert best["precision"] == str(bits.replace(error=None, grad=None))


def test_weights_with_bits_of_their_own_keep_them_in_the_test(tmp_path):
    """Only what inherits forward is tested; errors have the bits of the first step."""
    precision = PrecisionConfig(forward="CR:auto-8:2", weight=7, backward="LR:4-6:2")
    session = build_session(auto(tmp_path, precision=precision))
    assert str(range_test._precision_at(session, 3)) == "w7a3e4g4"


def test_training_that_diverges_in_the_test_is_no_gain(tmp_path, monkeypatch):
    """A loss that is not finite at 2 bits: the test continues at 3 from where it began."""
    original = range_test.optimizer_step

    def diverging(session, *arguments, **options):
        original(session, *arguments, **options)
        layer = next(module for module in session.model.modules() if hasattr(module, "precision"))
        if layer.precision.weight == 2:
            session.window["loss"] = session.window["loss"] * math.nan

    monkeypatch.setattr(range_test, "optimizer_step", diverging)
    result = run(auto(tmp_path))
    test = result.range_test["test"]
    assert test["verdicts"]["2"]["gain"] == "nan"
    assert len(test["runs"][0]["metric"]) == 1
    assert test["low"] >= 3
    assert json.dumps(result.range_test, allow_nan=False)


def test_changed_settings_count_in_a_run_with_a_test_only(tmp_path):
    config = with_auto(tmp_path, share=0.5)
    found = find_changes(config, replace(config, range_test=RangeTestConfig()))
    assert [str(change) for change in found] == ["range_test.share: was 0.5, is 0.9"]
    config = small(tmp_path, range_test=RangeTestConfig(share=0.5))
    assert find_changes(config, replace(config, range_test=RangeTestConfig())) == []


# -- settings -------------------------------------------------------------------------------------


def settings_of(config, total_steps, *, task=None):
    task = task or TASKS[config.task](config.model, config.data)
    return complete_settings(config, task, total_steps)


def with_auto(tmp_path, forward="CR:auto-8:8", **test):
    precision = PrecisionConfig(forward=forward, backward=8)
    return small(tmp_path, precision=precision, range_test=RangeTestConfig(**test))


def test_by_default_the_test_takes_at_most_2_percent_of_the_run_where_that_is_possible(tmp_path):
    """7 precisions, and 3 in each of 2 repeats: 13 x 98 of 64,000 steps; 20 to 100 each."""
    for total_steps, steps in ((64_000, 98), (500_000, 100), (240, 20)):
        made = settings_of(with_auto(tmp_path), total_steps)
        assert (made.criterion, made.low, made.high) == ("relative", 2, 8)
        assert (made.steps_per_precision, made.window) == (steps, steps // 4)
    assert 13 * 98 <= 0.02 * 64_000


@pytest.mark.parametrize("forward", ["CR:auto-8:32", "ramp:auto-8@0.5"])
def test_by_the_papers_criterion_all_precisions_together_take_one_cycle(tmp_path, forward):
    """64,000 steps, 32 cycles: 2,000 over 7 precisions. Without cycles a 32nd of the run."""
    config = with_auto(tmp_path, forward, criterion="paper")
    made = settings_of(config, 64_000)
    assert (made.steps_per_precision, made.window) == (285, 71)
    assert settings_of(config, 640).steps_per_precision == 100  # at least


def test_the_threshold_is_twice_the_accuracy_of_a_blind_guess_in_percent(tmp_path):
    """With two or three classes it is half of what is left: from 50 % none gains 100 points."""
    config = with_auto(tmp_path, criterion="paper")
    task = TASKS["images"](config.model, config.data)
    for classes, threshold in ((10, 20), (4, 50), (3, 100 / 3), (2, 25)):
        task.num_classes = classes
        assert settings_of(config, 8000, task=task).threshold == pytest.approx(threshold)
    assert settings_of(with_auto(tmp_path, threshold=3.0), 8000).threshold == 3


def test_the_configuration_overrides_every_default(tmp_path):
    given = {"low": 3, "high": 6, "steps_per_precision": 40, "window": 7, "threshold": 1.5}
    made = settings_of(with_auto(tmp_path, **given), 8000)
    assert made == RangeTestConfig(criterion="paper", **given)
    base = with_auto(tmp_path)
    assert override(base, ["--range_test.threshold", "2"]).range_test.is_paper
    changed = override(base, ["--range_test.share", "0.8", "--range_test.repeats=2"]).range_test
    assert (changed.share, changed.repeats) == (0.8, 2)


def test_by_the_papers_criterion_a_language_model_needs_a_threshold(tmp_path):
    config = lstm(tmp_path, write_words(tmp_path / "text"))
    with pytest.raises(ValueError, match=r"range_test\.threshold"):
        settings_of(replace(config, range_test=RangeTestConfig(criterion="paper")), 8000)
    assert settings_of(replace(config, range_test=RangeTestConfig()), 8000).threshold is None


# -- on its own -----------------------------------------------------------------------------------


def test_it_starts_at_2_whatever_the_schedule_and_compares_with_its_top(tmp_path):
    test, _, report = find_precision_range(configured(tmp_path, "CR:5-6:2"))
    assert min(test.verdicts) == 2
    assert (report["low"], test.high) == (test.low, 6)


def test_it_is_the_test_that_auto_would_run_and_leaves_nothing(tmp_path):
    before = torch.get_num_threads()
    typed, _, report = find_precision_range(configured(tmp_path, threads=1))
    assert files_below(tmp_path) == {}
    assert torch.get_num_threads() == before
    auto, _, other = find_precision_range(configured(tmp_path, "CR:auto-8:2"))
    assert typed == auto
    assert report["forward"] == other["forward"] == f"CR:{auto.low}-8:2"
    assert (report["machine"], report["threads"]) == (machine(), 1)
    assert (report["model"], report["data"], report["backward"]) == ("digits_mlp", "digits", 6)
    assert json.dumps(report, allow_nan=False)


def test_nothing_passed_is_a_report_with_the_metrics_and_the_error(tmp_path):
    settings = RangeTestConfig(steps_per_precision=4, threshold=99.0, high=4)
    test, error, report = find_precision_range(configured(tmp_path, range_test=settings))
    assert isinstance(error, RangeTestError)
    assert (report["low"], report["forward"]) == (None, None)
    assert report["test"] == test.to_dict()
    assert list(test.verdicts) == [2, 3, 4]


@pytest.mark.parametrize(
    "settings",
    [
        RangeTestConfig(steps_per_precision=40, repeats=1, high=4),
        RangeTestConfig(steps_per_precision=10, threshold=0.001, high=3),
    ],
)
def test_a_language_model_is_judged_by_its_falling_loss(tmp_path, settings):
    made = lstm(tmp_path, write_words(tmp_path / "text"), range_test=settings)
    test, _, _ = find_precision_range(made)
    assert (test.name, test.higher_is_better) == ("loss", False)
    assert test.low in (2, 3, 4)


def test_layers_that_patterns_leave_in_float32_stay_so(tmp_path):
    session = build_session(configured(tmp_path, forward={"*": 8, "fc2": "fp32"}))
    at_3 = range_test._precision_at(session, 3)
    assert (at_3["fc1"].weight, at_3["fc2"].weight) == (3, None)


@pytest.mark.parametrize(
    ("forward", "low", "high", "text"),
    [
        ("CR:3-8:2", 4, 8, "CR:4-8:2"),
        ("CR:auto-8:2", 4, 8, "CR:4-8:2"),
        ("RT-V:3-8:4", 4, 6, "RT-V:4-6:4"),
        ("triangle:3-8:4", 2, 8, "triangle:2-8:4"),
        (8, 4, 8, "CR:4-8:8"),
        ("stages:3@0.5,8", 4, 8, "CR:4-8:8"),
        ("CR:3-8:2", 8, 8, "8"),
    ],
)
def test_the_schedule_to_use_next_is_the_runs_own_between_the_bounds(
    tmp_path, forward, low, high, text
):
    made = configured(tmp_path, forward=forward, steps=240)
    assert forward_text(made, low, high, 240) == text
    assert replace(made.precision, forward=text).forward == text  # a configuration takes it
    assert forward_text(configured(tmp_path, forward=8), 3, 8, 64_000) == "CR:3-8:32"


def test_every_precision_of_a_repeat_trains_on_the_same_batches(tmp_path, monkeypatch):
    """Augmented, shuffled batches, compared by their pixels; another repeat has the next ones."""
    config = configured(tmp_path, data=DIGITS, range_test=replace(RELATIVE, repeats=2))
    original, drawn = range_test.optimizer_step, []

    def recorded(session, batches, **options):
        drawn.append(torch.cat([batch.inputs.flatten() for batch in batches]))
        return original(session, batches, **options)

    monkeypatch.setattr(range_test, "optimizer_step", recorded)
    test, _, _ = find_precision_range(config)
    position, by_repeat = 0, {0: [], 1: []}
    for each in test.runs:
        by_repeat[each.repeat].append(drawn[position : position + len(each.metric)])
        position += len(each.metric)
    assert position == len(drawn)
    for batches in by_repeat.values():
        assert len(batches) >= 2
        for other in batches[1:]:
            assert all(map(torch.equal, other, batches[0]))
    session = build_session(config)
    expected = [session.batches.batch_at(step).inputs.flatten() for step in range(24)]
    assert all(map(torch.equal, by_repeat[0][0], expected[:12]))
    assert all(map(torch.equal, by_repeat[1][0], expected[12:]))


def test_at_the_same_bits_the_test_trains_like_a_static_run(tmp_path):
    """The first repeat at 8 bits has the losses of a run at 8 bits: batches, noise and dropout."""
    test, _, _ = find_precision_range(configured(tmp_path, range_test=RELATIVE))
    first = test.runs[0]
    assert (first.repeat, first.bits) == (0, 8)
    static = small(
        tmp_path, precision=PrecisionConfig(forward=8, backward=6),
        tracking=replace(small(tmp_path).tracking, log_every=1),
    )  # fmt: skip
    run(static)
    losses = [line["loss"] for line in metrics_of(folder_of(static)) if line["kind"] == "train"]
    assert losses == list(first.metric)
