"""Configurations as YAML and as command-line overrides: every key there and back."""

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
)
from bitcycle.train.configfile import (
    from_dict,
    option_names,
    override,
    read_config,
    to_dict,
    to_yaml,
)

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


@pytest.mark.parametrize("key", sorted(set(option_names()) - UNCHANGED))
def test_the_example_has_a_value_of_its_own_for_every_key(key):
    assert value_of(OTHER, key) != value_of(BASE, key)


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


def test_yaml_names_only_what_differs_when_a_person_writes_it(tmp_path):
    text = "steps: 10\noptimizer:\n  lr: 0.5\nprecision: {forward: 'CR:3-8:2', backward: 8}\n"
    (tmp_path / "mine.yaml").write_text(text)
    assert read_config(tmp_path / "mine.yaml") == RunConfig(
        steps=10,
        optimizer=OptimizerConfig(lr=0.5),
        precision=PrecisionConfig(forward="CR:3-8:2", backward=8),
    )


def arguments_for(key, value):
    if isinstance(value, str):
        text = value
    elif value is None:
        text = "null"
    else:
        text = json.dumps(value)
    return [f"--{key}", text]


@pytest.mark.parametrize("key", [key for key in option_names() if key not in ("steps", "epochs")])
def test_every_key_can_be_overridden_on_the_command_line(key):
    base, wanted = BASE, value_of(OTHER, key)
    if key == "model.options":  # are those of a model
        base = override(BASE, ["--model.name", "digits_mlp"])
    changed = override(base, arguments_for(key, wanted))
    assert value_of(changed, key) == wanted
    assert type(value_of(changed, key)) is type(wanted)
    others = [name for name in option_names() if name != key]
    assert [value_of(changed, name) for name in others] == [value_of(base, name) for name in others]


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


def test_one_option_of_a_model_can_be_set_alone():
    base = dataclasses.replace(
        BASE, model=ModelConfig(name="digits_mlp", options={"width": 16, "image_size": 8})
    )
    assert override(base, ["--model.options.width", "32"]).model.options["width"] == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer.lrr", "0.1"], r"--optimizer\.lrr.*did you mean 'optimizer\.lr'"),
        (["--sede=3"], r"did you mean 'seed'"),
        (["--optimizer.lr", "fast"], r"optimizer\.lr"),
        (["--steps", "1.5"], r"steps"),
        (["--precision.forward", "CR:8-3"], r"precision\.forward.*low"),
        (["--lr.policy", "cosin"], r"lr\.policy"),
        (["--model.name", "digits_mpl"], r"did you mean 'digits_mlp'"),
        (["--data.batch_size", "0"], r"data\.batch_size \(0\)"),
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
        ({"steps": "many"}, r"steps"),
        ({"steps": 3, "optimizer": {"lr": "fast"}}, r"optimizer\.lr"),
        ({"steps": 3, "lr": {"milestones": 0.5}}, r"lr\.milestones"),
        ({"steps": 3, "precision": {"forward": "CR:8-3"}}, r"low"),
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
        (b"\xff\xfe\x00", "not a text file|not valid YAML"),
        (b"", "must be a mapping"),
        (b"just words", "must be a mapping"),
        (b"steps: !!python/object/apply:os.getcwd []", "not valid YAML"),
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


def test_a_rule_of_the_configuration_that_a_file_breaks_is_said_with_the_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("steps: 0\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"run\.yaml: steps \(0\) must be at least 1"):
        read_config(path)
