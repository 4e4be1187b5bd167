"""A run's configuration: checked at birth, as YAML, as command-line overrides."""

import pytest

from bitcycle_lab.tasks import DataConfig, ModelConfig
from bitcycle_lab.train.config import (
    CheckpointConfig,
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
    SwaConfig,
    TrackingConfig,
    steps_of,
    unchecked_names,
)
from bitcycle_lab.train.config_file import override

NAN = float("nan")
# the error names the last key
BAD_VALUES = {
    OptimizerConfig: [
        {"lr": 0.0}, {"lr": NAN}, {"momentum": 1.0}, {"weight_decay": -1e-4}, {"name": "sgdd"},
    ],
    LrConfig: [
        {"milestones": (0.5, 1.5)}, {"policy": "cosin"}, {"policy": "plateau", "warmup": 5},
        {"warmup": -1}, {"period_factor": 0}, {"gamma": 0.0},
    ],
    PrecisionConfig: [
        {"quantizer_options": {"x": 1}}, {"max_bits": 40}, {"max_bits": "nvfp4"},
        {"forward": "CR:8-3"}, {"forward": "CR:auto"}, {"forward": {"*": "CR:auto-8"}},
        {"forward": {"name": "CR", "low": 3}}, {"error": {"fc1": "CQ:3-8"}}, {"backward": 0},
        {"backward": "CR:auto-8"},
    ],
    EvalConfig: [{"precision": "hihg"}, {"every": 1.1}],
    CheckpointConfig: [{"every": -0.1}, {"keep": 0}],
    SwaConfig: [{"start": 2.0}, {"start": 0.5, "every": 0}],
    TrackingConfig: [{"log_every": 0}],
    DataConfig: [{"batch_size": 0}, {"validation": 1.5}],
    RunConfig: [
        {"steps": 0}, {"epochs": 0.0}, {"steps": 1, "epochs": 1.0}, {"steps": 1, "accumulate": 0},
        {"steps": 1, "clip_norm": 0.0}, {"steps": 1, "autocast": "fp16"}, {"steps": 1, "seed": -1},
        {"steps": 1, "threads": 0}, {"steps": 1, "name": "a/b"}, {"steps": 1, "name": ""},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "settings"), [(kind, each) for kind, rows in BAD_VALUES.items() for each in rows]
)
def test_a_bad_value_is_an_error_that_names_its_key(kind, settings):
    with pytest.raises(ValueError, match=list(settings)[-1]):
        kind(**settings)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (OptimizerConfig, {"name": "sgdd"}, "'sgd'"),
        (LrConfig, {"policy": "cosin"}, "'cosine'"),
        (LrConfig, {"policy": "inverse_sqrt"}, "warmup"),
        (PrecisionConfig, {"quantizer": "sbn"}, "'sbm'"),
        (PrecisionConfig, {"kernel": "simulat"}, "'simulate'"),
        (PrecisionConfig, {"forward": {"name": "CR", "lo": 3}}, "'low'"),
        (RunConfig, {"steps": 1, "task": "image"}, "'images'"),
        (RunConfig, {"data": DataConfig(name="digit")}, "'digits'"),
        (RunConfig, {"data": DataConfig(name="ptb")}, "'language'"),
        (RunConfig, {"model": ModelConfig(name="lstm_lm")}, "'language'"),
        (RunConfig, {"model": ModelConfig(name="digits_mpl")}, "'digits_mlp'"),
        (RunConfig, {"model": ModelConfig(name="digits_mlp", options={"widht": 3})}, "'width'"),
        (RunConfig, {}, "steps .* epochs"),
    ],
)
def test_a_wrong_name_is_an_error_with_the_likely_one(kind, settings, words):
    with pytest.raises(ValueError, match=words):
        kind(**settings)


@pytest.mark.parametrize(
    ("time", "total", "steps"),
    [
        (400, 64_000, 400),
        (0.5, 64_000, 32_000),
        (1, 10, 1),
        (1.0, 10, 10),
        (0.26, 10, 3),
        (0, 9, 0),
    ],
)
def test_a_time_is_a_number_of_steps_or_a_fraction_of_the_run(time, total, steps):
    assert steps_of(time, total) == steps


@pytest.mark.parametrize(
    ("settings", "is_float"),
    [
        ({}, True),
        ({"forward": "fp32", "backward": None}, True),
        ({"forward": {"fc1": "fp32"}}, True),
        ({"forward": 8}, False),
        ({"backward": 8}, False),
        ({"weight": "CR:3-8:2", "backward": "fp32"}, False),
        ({"forward": {"fc1": 8}}, False),
    ],
)
def test_only_a_run_without_any_bits_stays_unconverted(settings, is_float):
    assert PrecisionConfig(**settings).is_float is is_float


@pytest.mark.parametrize(
    ("settings", "backward"),
    [
        ({}, "fp32"),
        ({"forward": 4}, 8),
        ({"forward": "CR:auto-8:2"}, 8),
        ({"forward": {"*": 8, "fc1": "fp32"}}, {"*": 8, "fc1": "fp32"}),
        ({"weight": 4, "act": 8}, 8),
        ({"forward": 16, "error": 8}, "fp32"),  # sbm has no rule for grad
        ({"forward": 4, "backward": "fp32"}, "fp32"),
        ({"forward": 16, "backward": 16}, 16),
    ],
)
def test_backward_has_the_default_of_the_scheduler(settings, backward):
    precision = PrecisionConfig(**settings)
    assert precision.schedule_texts()["backward"] == backward
    assert precision.with_backward().backward == backward


@pytest.mark.parametrize("settings", [{"forward": 16}, {"weight": 4}, {"weight": {"fc1": 4}}])
def test_bits_without_a_default_for_backward_need_it(settings):
    with pytest.raises(ValueError, match="backward"):
        PrecisionConfig(**settings)


def test_error_and_grad_together_need_no_backward():
    texts = PrecisionConfig(forward=16, error=8, grad=8, quantizer="wageubn").schedule_texts()
    assert texts == {"forward": 16, "error": 8, "grad": 8}


def test_a_base_that_is_given_forward_bits_later_has_the_default_for_them():
    base = RunConfig(steps=10)
    assert base.precision.is_float
    assert override(base, ["--precision.forward", "4"]).precision.schedule_texts() == {
        "forward": 4, "backward": 8,
    }  # fmt: skip


def test_roles_that_inherit_are_not_given_to_the_scheduler():
    texts = PrecisionConfig(forward="CR:3-8:2", error=8).schedule_texts()
    assert texts == {"forward": "CR:3-8:2", "backward": 8, "error": 8}


def test_a_mapping_with_a_name_is_a_schedule_and_kept_as_its_text():
    mapping = {"name": "CR", "low": "auto", "high": 8, "cycles": 4}
    assert PrecisionConfig(forward=mapping).forward == "CR:auto-8:4"
    assert PrecisionConfig(backward={"name": "LR", "low": 6, "high": 8}).backward == "LR:6-8"


def test_auto_is_filled_in_when_the_lower_end_is_known():
    precision = PrecisionConfig(forward="delay@0.25(CR:auto-8:4)", backward=8)
    assert precision.auto_high == 8
    assert precision.schedule_texts(auto=3)["forward"] == "delay@0.25(CR:3-8:4)"
    assert not precision.is_float
    assert PrecisionConfig(forward="CR:3-8:4").auto_high is None


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "imags"},
        {"model": ModelConfig(name="resnet21")},
        {"data": DataConfig(name="cifar11")},
    ],
)
def test_names_are_looked_up_later_where_that_is_asked_for(settings):
    with unchecked_names():
        config = RunConfig(steps=10, **settings)
        config.check_names()
    with pytest.raises(ValueError, match="did you mean"):
        config.check_names()


def test_names_of_precision_are_looked_up_later_where_that_is_asked_for():
    with unchecked_names():
        config = RunConfig(steps=10, precision=PrecisionConfig(quantizer="smb"))
        config.check_names()
    with pytest.raises(ValueError, match="'sbm'"):
        config.check_names()
