"""What a run's range test does where its configuration leaves that open."""

from dataclasses import replace

import pytest

from bitcycle.tasks import TASKS
from bitcycle.train import PrecisionConfig, RangeTestConfig
from bitcycle.train.range_test import plan_range_test
from tests.train.small import lstm, small, write_words


def plan(config, total_steps, *, high=8, fewest=None, task=None):
    task = task or TASKS[config.task](config.model, config.data)
    return plan_range_test(config, task, total_steps, high=high, fewest=fewest)


def auto(tmp_path, forward="CR:auto-8:8", **test):
    precision = PrecisionConfig(forward=forward, backward=8)
    return small(tmp_path, precision=precision, range_test=RangeTestConfig(**test))


def test_all_precisions_together_take_one_cycle(tmp_path):
    """64,000 steps, 32 cycles: 2,000 over 7 precisions; a quarter of that is the window."""
    made = plan(auto(tmp_path, "CR:auto-8:32"), 64_000)
    assert (made.low, made.high, made.steps_per_precision, made.window) == (2, 8, 285, 71)
    assert 7 * made.steps_per_precision <= 2000


def test_a_schedule_without_cycles_is_given_a_32nd_of_the_run(tmp_path):
    assert plan(auto(tmp_path, "ramp:auto-8@0.5"), 64_000).steps_per_precision == 285


def test_the_threshold_is_twice_the_accuracy_of_a_blind_guess_in_percent(tmp_path):
    assert plan(auto(tmp_path), 8000).threshold == 20  # ten digits
    assert plan(auto(tmp_path, threshold=3.0), 8000).threshold == 3


def test_with_two_or_three_classes_it_is_half_of_what_is_left(tmp_path):
    """From 50 %, no accuracy gains 100 points."""
    config = auto(tmp_path)
    task = TASKS["images"](config.model, config.data)
    task.num_classes = 2
    assert plan(config, 8000, task=task).threshold == 25
    task.num_classes = 3
    assert plan(config, 8000, task=task).threshold == pytest.approx(100 / 3)
    task.num_classes = 4
    assert plan(config, 8000, task=task).threshold == 50


def test_the_configuration_overrides_every_default(tmp_path):
    config = auto(tmp_path, low=3, steps_per_precision=40, window=7, threshold=1.5, reset=True)
    made = plan(config, 8000, high=6)
    assert (made.low, made.high, made.steps_per_precision, made.window) == (3, 6, 40, 7)
    assert (made.threshold, made.reset, made.metric) == (1.5, True, "accuracy")
    assert str(made) == ("3 to 6 bits, 40 steps each; passes with a gain in accuracy above 1.5 "
                         "from the first to the last 7 steps")  # fmt: skip


def test_a_cycle_too_short_to_judge_is_an_error_with_the_way_out(tmp_path):
    message = r"has 30 steps, 4 for each of 7 precisions.*Set range_test\.steps_per_precision"
    with pytest.raises(ValueError, match=message):
        plan(auto(tmp_path), 240)
    assert plan(auto(tmp_path), 240, fewest=100).steps_per_precision == 100
    assert plan(auto(tmp_path, steps_per_precision=8), 240).steps_per_precision == 8


def test_a_language_model_is_judged_by_its_loss_and_needs_a_threshold(tmp_path):
    config = lstm(tmp_path, write_words(tmp_path / "text"))
    with pytest.raises(ValueError, match=r"measures -loss, in nats.*set range_test\.threshold"):
        plan(config, 8000)
    config = replace(config, range_test=RangeTestConfig(threshold=0.5))
    made = plan(config, 8000)
    assert (made.metric, made.threshold) == ("loss", 0.5)


def test_a_test_that_begins_above_its_end_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"range_test\.low \(9\) must be <= 8"):
        plan(auto(tmp_path, low=9), 8000)
