"""A run's configuration: checked at birth, as YAML, as command-line overrides."""

import dataclasses
import json

import pytest

from bitcycle.tasks import DataConfig, ModelConfig
from bitcycle.train.config import (
    CheckpointConfig,
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RangeTestConfig,
    RunConfig,
    SwaConfig,
    TrackingConfig,
    steps_of,
)
from bitcycle.train.config_file import (
    MOST_BYTES,
    from_dict,
    option_names,
    override,
    read_config,
    read_yaml,
    to_dict,
    to_yaml,
)


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
        (PrecisionConfig, {"forward": "CR:8-3"}, r"precision\.forward: .*low"),
        (PrecisionConfig, {"error": {"fc1": "CQ:3-8"}}, r"precision\.error: "),
        (PrecisionConfig, {"backward": 0}, r"precision\.backward: "),
        (PrecisionConfig, {"forward": "CR:auto"}, r"precision\.forward: .*as in CR:auto-8:32"),
        (PrecisionConfig, {"backward": "CR:auto-8"}, r"precision\.backward.*auto is for one forw"),
        (PrecisionConfig, {"forward": {"*": "CR:auto-8"}}, r"auto is for one forward schedule"),
        (PrecisionConfig, {"forward": {"name": "CR", "lo": 3}}, r"did you mean 'low'"),
        (PrecisionConfig, {"forward": {"name": "CR", "low": 3}}, r"forward .* lacks high"),
        (RangeTestConfig, {"low": 0}, r"range_test\.low"),
        (RangeTestConfig, {"low": None}, r"range_test\.low must be a number of bits"),
        (RangeTestConfig, {"steps_per_precision": 0}, r"range_test\.steps_per_precision \(0\)"),
        (RangeTestConfig, {"window": -1}, r"range_test\.window \(-1\)"),
        (RangeTestConfig, {"threshold": float("nan")}, r"range_test\.threshold \(nan\)"),
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
        ({"weight": "CR:3-8:2"}, False),
        ({"forward": {"fc1": 8}}, False),
    ],
)
def test_only_a_run_without_any_bits_stays_unconverted(settings, is_float):
    assert PrecisionConfig(**settings).is_float is is_float


def test_roles_that_inherit_are_not_given_to_the_scheduler():
    given = PrecisionConfig(forward="CR:3-8:2", error=8).given()
    assert given == {"forward": "CR:3-8:2", "backward": "fp32", "error": 8}


def test_a_mapping_with_a_name_is_a_schedule_and_kept_as_its_text():
    mapping = {"name": "CR", "low": "auto", "high": 8, "cycles": 4}
    assert PrecisionConfig(forward=mapping).forward == "CR:auto-8:4"
    assert PrecisionConfig(backward={"name": "LR", "low": 6, "high": 8}).backward == "LR:6-8"


def test_auto_is_filled_in_when_the_lower_end_is_known():
    precision = PrecisionConfig(forward="delay@0.25(CR:auto-8:4)", backward=8)
    assert precision.auto_high == 8
    assert precision.given(auto=3)["forward"] == "delay@0.25(CR:3-8:4)"
    assert not precision.is_float
    assert PrecisionConfig(forward="CR:3-8:4").auto_high is None


BASE = RunConfig(steps=100)

# every key with a value that is not its default
OTHER = RunConfig(
    name="other name",
    model=ModelConfig(name="digits_mlp", options={"width": 12}),
    data=DataConfig(
        name="cifar10", root="~/data/cifar", batch_size=20, eval_batch_size=10, subset=0.5,
        validation=100, sequence_length=20, features="row_normalized", num_workers=3,
        cache_dir="cache",
    ),
    optimizer=OptimizerConfig(
        name="adamw", lr=1e-3, momentum=0.5, nesterov=True, weight_decay=5e-4, betas=(0.8, 0.99)
    ),
    lr=LrConfig(
        policy="cosine", milestones=(400, 0.25, 1.0), gamma=0.5, min_lr=1e-5, warmup=0.125,
        warmup_lr=0.02, period=10, period_factor=3, patience=2,
    ),
    precision=PrecisionConfig(
        quantizer="sbm", quantizer_options={"error_rounding": "nearest"}, skip=("fc", "conv*"),
        only=("decoder",), kernel="simulate", max_bits=8, forward="CR:3-8:32",
        backward={"decoder": 8, "lstm.*": "fp32"}, weight=4, act="RT-H:2-6:4", error=None,
        grad={"*": 6},
    ),
    range_test=RangeTestConfig(
        low=3, steps_per_precision=40, window=5, threshold=2.5, reset=True
    ),
    eval=EvalConfig(precision="w4a4", every=500),
    checkpoint=CheckpointConfig(every=1.0, keep=5),
    swa=SwaConfig(start=0.75, every=10),
    tracking=TrackingConfig(log_every=7, tensorboard=False),
    steps=None,
    epochs=1.5,
    accumulate=4,
    clip_norm=0.25,
    autocast="bf16",
    channels_last=True,
    seed=3,
    threads=2,
    deterministic=False,
    output="elsewhere",
)  # fmt: skip


def value_of(config, key):
    value = to_dict(config)
    for part in key.split("."):
        value = value[part]
    return value


# there is no other quantizer yet, and a task decides about the names of model and data, a path and
# a vocabulary
UNCHANGED = {"precision.quantizer", "task", "model.path", "data.vocabulary"}


def test_the_example_has_a_value_of_its_own_for_every_key():
    for key in set(option_names()) - UNCHANGED:
        assert value_of(OTHER, key) != value_of(BASE, key), key


def test_a_configuration_comes_back_from_yaml(tmp_path):
    for config in (BASE, OTHER):
        (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        assert read_config(tmp_path / "config.yaml") == config


def test_yaml_keeps_steps_and_fractions_apart(tmp_path):
    """1 is one step, 1.0 is the whole run."""
    for time in (1, 1.0):
        config = dataclasses.replace(BASE, eval=EvalConfig(every=time))
        (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        found = read_config(tmp_path / "config.yaml").eval.every
        assert (found, type(found)) == (time, type(time))


def arguments_for(key, value):
    if isinstance(value, str):
        text = value
    elif value is None:
        text = "null"
    else:
        text = json.dumps(value)
    return [f"--{key}", text]


def test_every_key_can_be_overridden_on_the_command_line():
    arguments = [
        word for key in option_names() for word in arguments_for(key, value_of(OTHER, key))
    ]
    changed = override(BASE, arguments)
    assert changed == OTHER
    for key in option_names():
        assert type(value_of(changed, key)) is type(value_of(OTHER, key)), key


@pytest.mark.parametrize("key", ["seed", "optimizer.lr", "lr.milestones", "precision.backward"])
def test_an_override_changes_its_key_alone(key):
    changed = override(BASE, arguments_for(key, value_of(OTHER, key)))
    assert value_of(changed, key) == value_of(OTHER, key)
    for name in option_names():
        assert name == key or value_of(changed, name) == value_of(BASE, name)


def test_steps_and_epochs_are_exchanged_on_the_command_line():
    assert override(BASE, ["--steps", "null", "--epochs", "2.5"]).epochs == 2.5
    with pytest.raises(ValueError, match="exactly one of steps"):
        override(BASE, ["--epochs", "2.5"])


def test_a_task_is_chosen_together_with_its_model_and_data():
    names = ["--task", "language", "--model.name", "lstm_lm", "--data.name", "ptb",
             "--data.vocabulary", "500"]  # fmt: skip
    changed = override(BASE, [*names, "--model.options.tie", "true"])
    assert (changed.task, changed.model.name, changed.data.name) == ("language", "lstm_lm", "ptb")
    assert changed.data.vocabulary == 500
    assert changed.model.options == {"tie": True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer.lrr", "0.1"], r"--optimizer\.lrr.*did you mean 'optimizer\.lr'"),
        (["--sede=3"], r"did you mean 'seed'"),
        (["--optimizer.lr", "fast"], r"optimizer\.lr"),
        (["--steps", "1.5"], r"steps"),
        (["--precision.forward", "CR:8-3"], r"precision\.forward.*low"),
        (["--model.name", "digits_mpl"], r"did you mean 'digits_mlp'"),
    ],
)
def test_a_bad_override_names_the_key(arguments, message):
    with pytest.raises(ValueError, match=message):
        override(BASE, arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 3, "optimzer": {"lr": 1}}, r"key 'optimzer' in .*mean 'optimizer\.lr'"),
        ({"steps": 3, "optimizer": {"lrr": 1}}, r"key 'optimizer\.lrr'.*mean 'optimizer\.lr'"),
        ({"steps": 3, "optimizer": {"lr": "fast"}}, r"optimizer\.lr"),
        ({"steps": 3, "lr": {"milestones": 0.5}}, r"lr\.milestones"),
        ([], r"must be a mapping"),
    ],
)
def test_a_bad_setting_names_the_key(settings, message):
    with pytest.raises(ValueError, match=message):
        from_dict(settings)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"steps: [1", "not valid YAML"),
        (b"", "must be a mapping"),
    ],
)
def test_a_file_that_is_no_configuration_is_an_error_that_names_it(tmp_path, content, message):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_config(path)
    assert "broken.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "forward"),
    [
        (["--precision.forward.low", "auto"], "CR:auto-8:32"),
        (["--precision.forward.low=4"], "CR:4-8:32"),
        (["--precision.forward", "delay@0.5(LR:3-6:2)", "--precision.forward.low", "auto"],
         "delay@0.5(LR:auto-6:2)"),
        (["--precision.forward.low", "auto", "--precision.forward=LR:5-6:2"], "LR:auto-6:2"),
        (["--precision.forward", "{name: CR, low: auto, high: 6}"], "CR:auto-6"),
    ],
)  # fmt: skip
def test_the_lower_end_of_the_forward_schedule_has_an_override_of_its_own(arguments, forward):
    base = RunConfig(steps=100, precision=PrecisionConfig(forward="CR:3-8:32", backward=8))
    config = override(base, arguments)
    assert config.precision.forward == forward
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize("forward", [8, "seq(CR:3-8:8@0.8, CR:4-8:2)", {"fc": 8}])
def test_a_schedule_without_one_range_has_no_lower_end_to_override(forward):
    base = RunConfig(steps=100, precision=PrecisionConfig(forward=forward, backward=8))
    with pytest.raises(ValueError, match="a schedule with one range.*give all of"):
        override(base, ["--precision.forward.low", "auto"])


def read(folder, content):
    path = folder / "file.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_yaml(path, purpose="tests")


def test_plain_data_aliases_and_merged_keys_are_read(tmp_path):
    text = "a: [1, 2.5, x, null, true]\nb: &b {lr: 1, steps: 2}\nc: {<<: *b, lr: 3}"
    assert read(tmp_path, text) == {
        "a": [1, 2.5, "x", None, True],
        "b": {"lr": 1, "steps": 2},
        "c": {"lr": 3, "steps": 2},
    }
    assert read(tmp_path, "") is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a: [1", "expected ',' or ']'"),
        ("[" * 1_000, "nested too deeply"),
        ("a: &a [*a]", "an alias stands inside"),
        ("a: 2026-13-45", "month must be in 1..12"),
        ("a: !!bool maybe", "maybe"),
        ("a: !!timestamp never", "groupdict"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("a: 1\n---\na: 2", "expected a single document"),
        (b"\xff\xfe\x00", "is not a text file"),
        ("x" * (MOST_BYTES + 1), "at most 1,048,576"),
    ],
)
def test_anything_else_is_one_line_that_names_the_file(tmp_path, content, reason):
    with pytest.raises(ValueError, match="file") as caught:
        read(tmp_path, content)
    message = str(caught.value)
    assert reason in message
    assert "\n" not in message
    assert message.startswith(str(tmp_path / "file.yaml"))
