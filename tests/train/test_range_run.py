"""The range test of a configuration on its own."""

from dataclasses import replace

import pytest
import torch

from bitcycle.range_test import RangeCurve, RangeTest
from bitcycle.train import PrecisionConfig, RangeTestConfig
from bitcycle.train.range_test import forward_text, range_test_of
from bitcycle.train.run_directory import machine
from tests.train.small import files_below, float32, lstm, small, write_words

TEST = RangeTestConfig(steps_per_precision=10, window=3, threshold=3.0)


def config(tmp_path, forward="CR:3-8:2", **changes):
    precision = PrecisionConfig(forward=forward, backward=6)
    return small(tmp_path, **{"precision": precision, "range_test": TEST, **changes})


def bounds(low, high):
    curve = RangeCurve(bits=(2,), metric=(0.0,), window=1, threshold=1)
    return RangeTest(low=low, high=high, curve=curve, backward=8, reset=False)


def test_it_starts_at_2_whatever_the_schedule_and_ends_at_its_top(tmp_path):
    report, error = range_test_of(config(tmp_path, "CR:5-6:2"))
    assert error is None
    assert report.curve.precisions == (2, 3, 4, 5, 6)
    assert report.test.high == 6


def test_it_is_the_test_that_auto_would_run_and_leaves_nothing(tmp_path):
    before = torch.get_num_threads()
    typed, _ = range_test_of(config(tmp_path, threads=1))
    assert files_below(tmp_path) == {}
    assert torch.get_num_threads() == before
    auto, _ = range_test_of(config(tmp_path, "CR:auto-8:2"))
    assert typed.curve == auto.curve
    assert auto.forward == f"CR:{auto.test.low}-8:2"


def test_the_same_seed_gives_the_same_curve_and_another_one_another(tmp_path):
    first, second, other = (
        range_test_of(config(tmp_path, seed=seed), high=2)[0].curve for seed in (0, 0, 1)
    )
    assert first == second
    assert first.metric != other.metric


def test_the_report_has_machine_threads_and_wall_clock(tmp_path):
    made = range_test_of(config(tmp_path, threads=1), high=2, stop_early=True)[0].to_dict()
    assert made["machine"] == machine()
    assert made["threads"] == 1
    assert made["seconds"] > 0
    assert (made["model"], made["data"], made["backward"]) == ("digits_mlp", "digits", 6)
    assert (made["find_upper"], made["stop_early"]) == (False, True)


def test_nothing_passed_is_a_report_with_the_curve_and_the_error(tmp_path):
    settings = RangeTestConfig(steps_per_precision=4, threshold=99.0)
    report, error = range_test_of(config(tmp_path, range_test=settings), high=4)
    assert report.test is None
    assert report.forward is None
    assert report.curve == error.curve
    assert report.to_dict()["low"] is None
    assert report.to_dict()["seconds"] > 0
    assert report.curve.precisions == (2, 3, 4)


def test_a_language_model_is_judged_by_its_falling_loss(tmp_path):
    settings = RangeTestConfig(steps_per_precision=10, threshold=0.001)
    made = lstm(tmp_path, write_words(tmp_path / "text"), range_test=settings)
    report, _ = range_test_of(made, high=3)
    assert report.curve.name == "-loss"
    assert all(value < 0 for value in report.curve.metric)


def test_a_float32_run_has_no_bits_to_test(tmp_path):
    with pytest.raises(ValueError, match="trains in float32.*--precision.forward 8"):
        range_test_of(config(tmp_path, precision=float32()))


def test_layers_that_patterns_leave_in_float32_stay_so(tmp_path):
    forward = {"*": 8, "fc2": "fp32"}
    report, _ = range_test_of(config(tmp_path, forward=forward), high=3)
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
    made = config(tmp_path, forward=forward, steps=240)
    assert forward_text(made, bounds(low, high), 240) == text
    assert replace(made.precision, forward=text).forward == text  # a configuration takes it


def test_a_long_run_without_cycles_is_given_the_papers_32(tmp_path):
    made = config(tmp_path, forward=8, steps=64_000)
    assert forward_text(made, bounds(3, 8), 64_000) == "CR:3-8:32"
