"""A run's configuration: checked at birth, as YAML, as command-line overrides."""

import pytest

from bitcycle.tasks import DataConfig, ModelConfig
from bitcycle.train.config import (
    CheckpointConfig,
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
    SwaConfig,
    TrackingConfig,
    steps_of,
)
from bitcycle.train.config_file import override


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (OptimizerConfig, {"name": "sgdd"}, r"optimizer\.name 'sgdd'.*did you mean 'sgd'"),
        (OptimizerConfig, {"lr": 0.0}, r"optimizer\.lr \(0\.0\) must be greater than 0"),
        (OptimizerConfig, {"lr": float("nan")}, r"optimizer\.lr \(nan\)"),
        (OptimizerConfig, {"momentum": 1.0}, r"optimizer\.momentum \(1\.0\)"),
        (OptimizerConfig, {"weight_decay": -1e-4}, r"optimizer\.weight_decay"),
        (LrConfig, {"policy": "cosin"}, r"lr\.policy 'cosin'.*did you mean 'cosine'"),
        (LrConfig, {"milestones": (0.5, 1.5)}, r"lr\.milestones \(1\.5\)"),
        (LrConfig, {"warmup": -1}, r"lr\.warmup \(-1\)"),
        (LrConfig, {"policy": "inverse_sqrt"}, r"needs lr\.warmup"),
        (LrConfig, {"policy": "plateau", "warmup": 5}, r"lr\.warmup does not combine"),
        (LrConfig, {"period_factor": 0}, r"lr\.period_factor \(0\)"),
        (LrConfig, {"gamma": 0.0}, r"lr\.gamma \(0\.0\)"),
        (PrecisionConfig, {"quantizer": "sbn"}, r"'sbn'.*did you mean 'sbm'"),
        (PrecisionConfig, {"quantizer_options": {"x": 1}}, r"quantizer_options for 'sbm'.*'x'"),
        (PrecisionConfig, {"kernel": "simulat"}, r"did you mean 'simulate'"),
        (PrecisionConfig, {"max_bits": 40}, r"precision\.max_bits"),
        (PrecisionConfig, {"max_bits": "nvfp4"}, r"precision\.max_bits must be None .* 'nvfp4'"),
        (PrecisionConfig, {"quantizer": "mxfp8"}, "'mxfp8'"),
        (PrecisionConfig, {"forward": "CR:8-3"}, r"precision\.forward: .*low"),
        (PrecisionConfig, {"error": {"fc1": "CQ:3-8"}}, r"precision\.error: "),
        (PrecisionConfig, {"backward": 0}, r"precision\.backward: "),
        (PrecisionConfig, {"forward": "CR:auto"}, r"precision\.forward: .*as in CR:auto-8:32"),
        (PrecisionConfig, {"backward": "CR:auto-8"}, r"precision\.backward.*auto is for one forw"),
        (PrecisionConfig, {"forward": {"*": "CR:auto-8"}}, r"auto is for one forward schedule"),
        (PrecisionConfig, {"forward": {"name": "CR", "lo": 3}}, r"did you mean 'low'"),
        (PrecisionConfig, {"forward": {"name": "CR", "low": 3}}, r"forward .* lacks high"),
        (EvalConfig, {"precision": "hihg"}, r"eval\.precision is high, scheduled, full or bits"),
        (EvalConfig, {"every": 1.1}, r"eval\.every \(1\.1\)"),
        (CheckpointConfig, {"every": -0.1}, r"checkpoint\.every"),
        (CheckpointConfig, {"keep": 0}, r"checkpoint\.keep \(0\)"),
        (SwaConfig, {"start": 2.0}, r"swa\.start \(2\.0\)"),
        (SwaConfig, {"start": 0.5, "every": 0}, r"swa\.every \(0\)"),
        (TrackingConfig, {"log_every": 0}, r"tracking\.log_every \(0\)"),
        (RunConfig, {"model": ModelConfig(name="digits_mpl")}, r"did you mean 'digits_mlp'"),
        (RunConfig, {"model": ModelConfig(name="digits_mlp", options={"widht": 3})},
         r"did you mean 'width'"),
        (RunConfig, {"model": ModelConfig(name="lstm_lm")}, r"'lstm_lm' is of kind 'language'"),
        (RunConfig, {"data": DataConfig(name="digit")}, r"did you mean 'digits'"),
        (RunConfig, {"data": DataConfig(name="ptb")}, r"'ptb' is of kind 'language'"),
        (DataConfig, {"batch_size": 0}, r"data\.batch_size \(0\)"),
        (DataConfig, {"validation": 1.5}, r"data\.validation \(1\.5\)"),
        (RunConfig, {"steps": 1, "task": "image"}, r"did you mean 'images'"),
        (RunConfig, {"steps": 1, "name": "a/b"}, r"name \('a/b'\) must be usable as a folder"),
        (RunConfig, {"steps": 1, "name": ""}, r"name \(''\)"),
        (RunConfig, {}, r"exactly one of steps \(None\) and epochs \(None\)"),
        (RunConfig, {"steps": 1, "epochs": 1.0}, r"exactly one of steps"),
        (RunConfig, {"steps": 0}, r"steps \(0\)"),
        (RunConfig, {"epochs": 0.0}, r"epochs \(0\.0\)"),
        (RunConfig, {"steps": 1, "accumulate": 0}, r"accumulate \(0\)"),
        (RunConfig, {"steps": 1, "clip_norm": 0.0}, r"clip_norm \(0\.0\)"),
        (RunConfig, {"steps": 1, "autocast": "fp16"}, r"autocast 'fp16'"),
        (RunConfig, {"steps": 1, "seed": -1}, r"seed \(-1\)"),
        (RunConfig, {"steps": 1, "threads": 0}, r"threads \(0\)"),
    ],
)  # fmt: skip
def test_a_bad_value_is_an_error_that_names_it(kind, settings, message):
    with pytest.raises(ValueError, match=message):
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
    message = "precision.backward"
    with pytest.raises(ValueError, match=message):
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
