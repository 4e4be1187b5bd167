"""The range test of a run: its settings, `auto` in a schedule, and a test on its own."""

import json
import math
import os
import signal
from dataclasses import replace

import pytest
import torch

from bitcycle.range_curves import RangeCurve
from bitcycle.range_test import RangeTest, RangeTestError
from bitcycle.tasks import TASKS, DataConfig, ModelConfig
from bitcycle.train import (
    EvalConfig,
    PrecisionConfig,
    RangeTestConfig,
    RunResult,
    SwaConfig,
    range_test,
    resume,
    run,
)
from bitcycle.train.checkpoint import Checkpoints
from bitcycle.train.config_changes import find_changes
from bitcycle.train.config_file import override
from bitcycle.train.evaluate import evaluate_run
from bitcycle.train.range_test import find_precision_range, forward_text, make_settings
from bitcycle.train.run import resume_or_run
from bitcycle.train.run_directory import machine
from bitcycle.train.session import build_session
from bitcycle.train.signals import Interrupted
from tests.train.small import (
    Killed,
    files_below,
    float32,
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
    original, steps = range_test.optimizer_step, iter(range(10_000))

    def dying(*arguments, **options):
        if next(steps) == number:
            raise Killed
        original(*arguments, **options)

    patch.setattr(range_test, "optimizer_step", dying)


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
            patch.setattr(range_test, "save_checkpoint", die)
        else:
            kill_before_step(patch, int(where[-1]))
        with pytest.raises(Killed):
            run(config)
    torch.manual_seed(1)
    if where != "before its checkpoint":
        monkeypatch.setattr(range_test, "optimizer_step", die)  # the test is not repeated
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
    original, steps = range_test.optimizer_step, iter(range(10_000))

    def signalled(*arguments, **options):
        if next(steps) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(range_test, "optimizer_step", signalled)
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
    config = auto(tmp_path, range_test=RangeTestConfig(criterion="paper"))
    with pytest.raises(ValueError, match=r"Set range_test\.steps_per_precision"):
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


def test_weights_with_bits_of_their_own_keep_them_in_the_test(tmp_path, monkeypatch):
    """Only what inherits forward is tested; errors have the bits of the first step."""
    config = auto(
        tmp_path,
        precision=PrecisionConfig(forward="CR:auto-8:2", weight=7, backward="LR:4-6:2"),
    )
    session = build_session(config)
    seen = range_test._precision_at(session, 3)
    assert str(seen) == "w7a3e4g4"


def test_training_that_diverges_in_the_test_is_no_gain(tmp_path, monkeypatch):
    """A loss that is not finite at 2 bits: the test continues at 3 from where it began."""
    config = auto(tmp_path)
    original = range_test.optimizer_step

    def diverging(session, *arguments, **options):
        original(session, *arguments, **options)
        if next(iter(session.model.modules())).training and _bits(session) == 2:
            session.window["loss"] = session.window["loss"] * math.nan

    monkeypatch.setattr(range_test, "optimizer_step", diverging)
    result = run(config)
    curve = result.range_test["test"]["curve"]
    assert curve["gains"]["2"] is None
    assert curve["bits"].count(2) == 1
    assert result.range_test["test"]["low"] >= 3
    assert json.dumps(result.range_test, allow_nan=False)


def _bits(session):
    return next(m.precision.weight for m in session.model.modules() if hasattr(m, "precision"))


def settings_of(config, total_steps, *, high=8, fewest=None, task=None):
    task = task or TASKS[config.task](config.model, config.data)
    return make_settings(config, task, total_steps, high=high, fewest=fewest)


def with_auto(tmp_path, forward="CR:auto-8:8", **test):
    precision = PrecisionConfig(forward=forward, backward=8)
    return small(tmp_path, precision=precision, range_test=RangeTestConfig(**test))


def test_all_precisions_together_take_one_cycle(tmp_path):
    """64,000 steps, 32 cycles: 2,000 over 7 precisions; a quarter of that is the window."""
    made = settings_of(with_auto(tmp_path, "CR:auto-8:32", criterion="paper"), 64_000)
    assert (made.low, made.high, made.steps_per_precision, made.window) == (2, 8, 285, 71)
    assert 7 * made.steps_per_precision <= 2000


def test_a_schedule_without_cycles_is_given_a_32nd_of_the_run(tmp_path):
    config = with_auto(tmp_path, "ramp:auto-8@0.5", criterion="paper")
    assert settings_of(config, 64_000).steps_per_precision == 285


def test_the_threshold_is_twice_the_accuracy_of_a_blind_guess_in_percent(tmp_path):
    config = with_auto(tmp_path, criterion="paper")
    assert settings_of(config, 8000).threshold == 20  # ten digits
    assert settings_of(with_auto(tmp_path, threshold=3.0), 8000).threshold == 3


def test_with_two_or_three_classes_it_is_half_of_what_is_left(tmp_path):
    """From 50 %, no accuracy gains 100 points."""
    config = with_auto(tmp_path, criterion="paper")
    task = TASKS["images"](config.model, config.data)
    task.num_classes = 2
    assert settings_of(config, 8000, task=task).threshold == 25
    task.num_classes = 3
    assert settings_of(config, 8000, task=task).threshold == pytest.approx(100 / 3)
    task.num_classes = 4
    assert settings_of(config, 8000, task=task).threshold == 50


def test_the_configuration_overrides_every_default(tmp_path):
    config = with_auto(tmp_path, low=3, steps_per_precision=40, window=7, threshold=1.5, reset=True)
    made = settings_of(config, 8000, high=6)
    assert (made.low, made.high, made.steps_per_precision, made.window) == (3, 6, 40, 7)
    assert (made.threshold, made.reset, made.metric) == (1.5, True, "accuracy")
    assert str(made) == ("3 to 6 bits, 40 steps each; passes with a gain in accuracy above 1.5 "
                         "from the first to the last 7 steps")  # fmt: skip


def test_a_cycle_too_short_to_judge_is_an_error_with_the_way_out(tmp_path):
    message = r"has 30 steps, 4 for each of 7 precisions.*Set range_test\.steps_per_precision"
    config = with_auto(tmp_path, criterion="paper")
    with pytest.raises(ValueError, match=message):
        settings_of(config, 240)
    assert settings_of(config, 240, fewest=100).steps_per_precision == 100
    config = with_auto(tmp_path, criterion="paper", steps_per_precision=8)
    assert settings_of(config, 240).steps_per_precision == 8


def test_a_language_model_is_judged_by_its_loss_and_needs_a_threshold(tmp_path):
    paper = RangeTestConfig(criterion="paper")
    config = lstm(tmp_path, write_words(tmp_path / "text"), range_test=paper)
    with pytest.raises(ValueError, match=r"measures -loss, in nats.*set range_test\.threshold"):
        settings_of(config, 8000)
    config = replace(config, range_test=RangeTestConfig(threshold=0.5))
    made = settings_of(config, 8000)
    assert (made.metric, made.threshold) == ("loss", 0.5)
    config = replace(config, range_test=RangeTestConfig())  # the relative criterion needs none
    made = settings_of(config, 8000)
    assert (made.criterion, made.metric, made.threshold) == ("relative", "loss", None)


def test_a_test_that_begins_above_its_end_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"range_test\.low \(9\) must be <= 8"):
        settings_of(with_auto(tmp_path, low=9), 8000)


SHORT_TEST = RangeTestConfig(steps_per_precision=10, window=3, threshold=3.0)


def configured(tmp_path, forward="CR:3-8:2", **changes):
    precision = PrecisionConfig(forward=forward, backward=6)
    return small(tmp_path, **{"precision": precision, "range_test": SHORT_TEST, **changes})


def bounds(low, high):
    curve = RangeCurve(bits=(2,), metric=(0.0,), window=1, threshold=1)
    return RangeTest(low=low, high=high, curve=curve, backward=8, reset=False)


def test_it_starts_at_2_whatever_the_schedule_and_ends_at_its_top(tmp_path):
    report, error = find_precision_range(configured(tmp_path, "CR:5-6:2"))
    assert error is None
    assert report.curve.precisions == (2, 3, 4, 5, 6)
    assert report.test.high == 6


def test_it_is_the_test_that_auto_would_run_and_leaves_nothing(tmp_path):
    before = torch.get_num_threads()
    typed, _ = find_precision_range(configured(tmp_path, threads=1))
    assert files_below(tmp_path) == {}
    assert torch.get_num_threads() == before
    auto, _ = find_precision_range(configured(tmp_path, "CR:auto-8:2"))
    assert typed.curve == auto.curve
    assert auto.forward == f"CR:{auto.test.low}-8:2"


def test_the_same_seed_gives_the_same_curve_and_another_one_another(tmp_path):
    first, second, other = (
        find_precision_range(configured(tmp_path, seed=seed), high=2)[0].curve for seed in (0, 0, 1)
    )
    assert first == second
    assert first.metric != other.metric


def test_the_report_has_machine_threads_and_wall_clock(tmp_path):
    made = find_precision_range(configured(tmp_path, threads=1), high=2, stop_early=True)[
        0
    ].to_dict()
    assert made["machine"] == machine()
    assert made["threads"] == 1
    assert made["seconds"] > 0
    assert (made["model"], made["data"], made["backward"]) == ("digits_mlp", "digits", 6)
    assert (made["find_upper"], made["stop_early"]) == (False, True)


def test_nothing_passed_is_a_report_with_the_curve_and_the_error(tmp_path):
    settings = RangeTestConfig(steps_per_precision=4, threshold=99.0)
    report, error = find_precision_range(configured(tmp_path, range_test=settings), high=4)
    assert report.test is None
    assert report.forward is None
    assert report.curve == error.curve
    assert report.to_dict()["low"] is None
    assert report.to_dict()["seconds"] > 0
    assert report.curve.precisions == (2, 3, 4)


def test_a_language_model_is_judged_by_its_falling_loss(tmp_path):
    settings = RangeTestConfig(steps_per_precision=10, threshold=0.001)
    made = lstm(tmp_path, write_words(tmp_path / "text"), range_test=settings)
    report, _ = find_precision_range(made, high=3)
    assert report.curve.name == "-loss"
    assert all(value < 0 for value in report.curve.metric)


def test_a_float32_run_has_no_bits_to_test(tmp_path):
    with pytest.raises(ValueError, match="trains in float32.*--precision.forward 8"):
        find_precision_range(configured(tmp_path, precision=float32()))


def test_layers_that_patterns_leave_in_float32_stay_so(tmp_path):
    forward = {"*": 8, "fc2": "fp32"}
    report, _ = find_precision_range(configured(tmp_path, forward=forward), high=3)
    assert report.curve.precisions == (2, 3)


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
    assert forward_text(made, bounds(low, high), 240) == text
    assert replace(made.precision, forward=text).forward == text  # a configuration takes it


def test_a_long_run_without_cycles_is_given_the_papers_32(tmp_path):
    made = configured(tmp_path, forward=8, steps=64_000)
    assert forward_text(made, bounds(3, 8), 64_000) == "CR:3-8:32"


# -- relative criterion ---------------------------------------------------------------------------

RELATIVE = RangeTestConfig(steps_per_precision=12, window=4)


@pytest.fixture(scope="module")
def relative(tmp_path_factory):
    output = tmp_path_factory.mktemp("relative")
    config = auto(output, data=DIGITS, eval=EvalConfig(every=4), range_test=RELATIVE)
    run(config)
    return config


def test_by_default_the_test_takes_at_most_2_percent_of_the_run_where_that_is_possible(tmp_path):
    """7 precisions, and 3 in each of 2 repeats: 13 x 98 of 64,000 steps; 20 to 100 each."""
    for total_steps, steps in ((64_000, 98), (500_000, 100), (240, 20)):
        made = settings_of(with_auto(tmp_path), total_steps)
        assert (made.criterion, made.steps_per_precision, made.window) == (
            "relative", steps, steps // 4,
        )  # fmt: skip
    assert 13 * 98 <= 0.02 * 64_000
    assert str(made) == "2 to 8 bits, 20 steps each; passes with 0.9 of the drop in loss at 8"


def test_every_precision_of_a_repeat_trains_on_the_same_batches(tmp_path, monkeypatch):
    """Augmented, shuffled batches, compared by their pixels; another repeat has the next ones."""
    config = configured(tmp_path, data=DIGITS, range_test=replace(RELATIVE, repeats=2))
    original, drawn = range_test.optimizer_step, []

    def recorded(session, batches, **options):
        drawn.append(torch.cat([batch.inputs.flatten() for batch in batches]))
        return original(session, batches, **options)

    monkeypatch.setattr(range_test, "optimizer_step", recorded)
    report, error = find_precision_range(config)
    assert error is None
    runs, position, by_repeat = report.curve.runs, 0, {0: [], 1: []}
    for each in runs:
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
    report, _ = find_precision_range(configured(tmp_path, range_test=RELATIVE))
    first = report.curve.runs[0]
    assert (first.repeat, first.bits) == (0, 8)
    static = small(
        tmp_path, precision=PrecisionConfig(forward=8, backward=6),
        tracking=replace(small(tmp_path).tracking, log_every=1),
        lr=configured(tmp_path).lr,
    )  # fmt: skip
    run(static)
    losses = [line["loss"] for line in metrics_of(folder_of(static)) if line["kind"] == "train"]
    assert losses == list(first.metric)


def test_a_run_by_the_relative_criterion_is_the_one_whose_lower_end_was_typed(tmp_path, relative):
    found = RunResult.read(folder_of(relative))
    test = found.range_test["test"]
    assert (test["criterion"], test["rewinds_data"]) == ("relative", True)
    precision = PrecisionConfig(forward=f"CR:{test['low']}-8:2", backward=6)
    typed = small(tmp_path, data=DIGITS, eval=EvalConfig(every=4), precision=precision)
    assert run(typed).weights_sha256 == found.weights_sha256
    assert found.cost["range_test"] == sum(found.range_test["bitops"].values()) > 0


def test_its_cost_is_logged_next_to_the_runs(relative):
    log = (folder_of(relative) / "log.txt").read_text()
    curve = RunResult.read(folder_of(relative)).range_test["test"]["curve"]
    steps = sum(len(each["metric"]) for each in curve["runs"])
    assert f"range test: took {steps} steps ({100 * steps / 12:.1f} % of the run's)" in log


def test_a_run_killed_during_a_relative_test_ends_like_the_one_that_was_not(
    tmp_path, monkeypatch, relative
):
    config = auto(tmp_path, data=DIGITS, eval=EvalConfig(every=4), range_test=RELATIVE)
    with monkeypatch.context() as patch:
        kill_in_test(patch, 29)
        with pytest.raises(Killed):
            run(config)
    torch.manual_seed(5)
    resume(folder_of(config))
    assert traces(folder_of(config)) == traces(folder_of(relative))


def test_the_config_of_a_run_has_the_criterion(relative):
    assert "  criterion: relative\n" in (folder_of(relative) / "config.yaml").read_text()


def test_the_share_of_a_folder_counts_in_a_run_with_a_test_only(tmp_path, monkeypatch):
    """A folder from before the default was 0.9 goes on if it has no test, and is told if it has."""
    half, most = RangeTestConfig(share=0.5), RangeTestConfig()
    config = with_auto(tmp_path, share=0.5)
    found = find_changes(config, replace(config, range_test=most))
    assert [str(change) for change in found] == ["range_test.share: was 0.5, is 0.9"]
    config = small(tmp_path, range_test=half)
    with monkeypatch.context() as patch:
        kill_before_step(patch, 4)
        with pytest.raises(Killed):
            run(config)
    assert "share: 0.5" in (folder_of(config) / "config.yaml").read_text()
    result = resume_or_run(replace(config, range_test=most))
    assert result.steps == config.steps


def test_a_threshold_or_reset_selects_the_papers_criterion():
    assert RangeTestConfig().criterion == "relative"
    assert RangeTestConfig(threshold=0.5).criterion == "paper"
    assert RangeTestConfig(reset=True).criterion == "paper"
    with pytest.raises(
        ValueError, match=r"range_test\.threshold \(0\.5\) is a setting of the paper"
    ):
        RangeTestConfig(criterion="relative", threshold=0.5)


def test_options_of_the_papers_criterion_select_it(tmp_path):
    base = with_auto(tmp_path)
    assert base.range_test.criterion == "relative"
    assert override(base, ["--range_test.threshold", "2"]).range_test.criterion == "paper"
    changed = override(base, ["--range_test.share", "0.8", "--range_test.repeats=2"]).range_test
    assert (changed.criterion, changed.share, changed.repeats) == ("relative", 0.8, 2)


def test_a_language_model_has_a_bound_without_a_threshold(tmp_path):
    made = lstm(tmp_path, write_words(tmp_path / "text"),
                range_test=RangeTestConfig(steps_per_precision=40, repeats=1))  # fmt: skip
    report, error = find_precision_range(made, high=4)
    assert error is None
    assert report.curve.name == "loss"
    assert report.test.low in (2, 3, 4)
    assert report.cost.run_bitops > 0


def test_settings_of_the_papers_criterion_are_refused_before_the_data_is_read(tmp_path):
    with pytest.raises(ValueError, match="settings of the paper's criterion"):
        find_precision_range(configured(tmp_path, range_test=RELATIVE), find_upper=True)


def test_a_window_of_one_step_is_refused_before_the_folder_exists(tmp_path):
    config = auto(tmp_path, range_test=RangeTestConfig(steps_per_precision=12, window=1))
    with pytest.raises(ValueError, match=r"range_test\.window \(1\) must be at least 2"):
        run(config)
    assert not folder_of(config).exists()
    paper = RangeTestConfig(criterion="paper", steps_per_precision=12, window=1)
    assert settings_of(replace(config, range_test=paper), 12).window == 1
