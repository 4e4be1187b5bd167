"""A configuration as YAML, plain data and command-line options; a mistake is named."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import yaml

import bitcycle_lab
from bitcycle.files import FORM
from bitcycle_lab.tasks import DataConfig, ModelConfig
from bitcycle_lab.train.config import (
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
from bitcycle_lab.train.config_file import (
    MAX_BYTES,
    from_dict,
    option_names,
    override,
    read_config,
    read_yaml,
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
        criterion="paper", low=3, high=7, steps_per_precision=40, window=5, threshold=2.5,
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
# a vocabulary; share, repeats and careful_below are for another criterion
UNCHANGED = {"precision.quantizer", "task", "model.path", "data.vocabulary"}
UNCHANGED |= {"range_test.share", "range_test.repeats", "range_test.careful_below"}
UNCHANGED |= {"precision.backward_operands"}  # not for bits that are grids


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


def test_a_task_is_chosen_together_with_its_model_and_data():
    names = ["--task", "language", "--model.name", "lstm_lm", "--data.name", "ptb",
             "--data.vocabulary", "500"]  # fmt: skip
    changed = override(BASE, [*names, "--model.options.tie", "true"])
    assert (changed.task, changed.model.name, changed.data.name) == ("language", "lstm_lm", "ptb")
    assert changed.data.vocabulary == 500
    assert changed.model.options == {"tie": True}


def test_a_list_on_the_command_line_is_a_name_or_names_with_commas():
    for words, key, expected in (
        (["--precision.skip", "fc"], "skip", ("fc",)),
        (["--precision.skip=fc"], "skip", ("fc",)),
        (["--precision.skip", "fc, 0.*"], "skip", ("fc", "0.*")),
        (["--precision.skip", '["fc", "2"]'], "skip", ("fc", "2")),
        (["--precision.only", "2"], "only", ("2",)),
        (["--precision.only", "null"], "only", None),
    ):
        assert getattr(override(BASE, words).precision, key) == expected
    assert override(BASE, ["--lr.milestones", "0.5"]).lr.milestones == (0.5,)
    assert override(BASE, ["--lr.milestones", "10,0.75"]).lr.milestones == (10, 0.75)
    assert override(BASE, ["--optimizer.betas", "0.8,0.9"]).optimizer.betas == (0.8, 0.9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--optimizer.lrr", "0.1"], "'--optimizer.lr'"),
        (["--sede=3"], "'--seed'"),
        (["--lr", "0.1"], "'--optimizer.lr'"),
        (["--lr=0.1"], "'--optimizer.lr'"),
        (["--momentum", "0.1"], "'--optimizer.momentum'"),
        (["--optimizer", "adam"], "'--optimizer.name'"),
        (["--every", "2"], "'--eval.every', '--checkpoint.every' or '--swa.every'"),
        (["--zzz", "2"], "'--zzz'"),
        (["--optimizer.lr", "fast"], "optimizer.lr"),
        (["--steps", "1.5"], "steps"),
        (["--precision.forward", "CR:8-3"], "precision.forward"),
        (["--precision.skip"], "'--precision.skip'"),
        (["--precision.skip", "--seed", "3"], "'--precision.skip'"),
        (["--epochs", "2.5"], "steps (100) and epochs (2.5)"),
    ],
)
def test_a_bad_override_names_the_key(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        override(BASE, arguments)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 3, "optimzer": {"lr": 1}}, "'optimzer'.*'optimizer.lr'"),
        ({"steps": 3, "optimizer": {"lrr": 1}}, "'optimizer.lrr'.*'optimizer.lr'"),
        ({"steps": 3, "lr": 0.1}, "'lr'.*'optimizer.lr'"),
        ({"steps": 3, "optimizer": {"lr": "fast"}}, "optimizer.lr"),
        ({"steps": 3, "lr": {"milestones": 0.5}}, "lr.milestones"),
        ([], "list"),
    ],
)
def test_a_bad_setting_names_the_key(settings, words):
    with pytest.raises(ValueError, match=words):
        from_dict(settings)


@pytest.mark.parametrize("content", [b"steps: [1", b""])
def test_a_file_that_is_no_configuration_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.yaml"):
        read_config(path)


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
    with pytest.raises(ValueError, match="one range"):
        override(base, ["--precision.forward.low", "auto"])


def read(folder, content):
    path = folder / "file.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_yaml(path, purpose="tests")


def test_plain_data_is_read(tmp_path):
    text = "a: [1, 2.5, x, null, true]\nb: &b {lr: 1, steps: 2}"
    assert read(tmp_path, text) == {"a": [1, 2.5, "x", None, True], "b": {"lr": 1, "steps": 2}}
    assert read(tmp_path, "") is None


# 2^100 values in two kilobytes: each line repeats the one before twice
BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 100))
INLINE_BOMB = f"{{{', '.join(BOMB.splitlines())}}}"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("option", ["--model.options", "--precision.quantizer_options"])
def test_aliases_that_stand_for_more_than_memory_are_refused_wherever_they_come_from(
    tmp_path, option
):
    with pytest.raises(ValueError, match="line 2.*a0"):
        read(tmp_path, BOMB)
    path = tmp_path / "run.yaml"
    group, _, key = option[2:].partition(".")
    path.write_text(f"steps: 1\n{group}: {{{key}: {INLINE_BOMB}}}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a0"):
        read_config(path)
    for value in (INLINE_BOMB, BOMB):
        with pytest.raises(ValueError, match="a0"):
            override(BASE, [option, value])
        with pytest.raises(ValueError, match="a0"):
            override(BASE, [f"{option}={value}"])
    path.write_text(f"{key}: {INLINE_BOMB}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="a0"):
        override(BASE, [f"--{group}", str(path)])


def test_the_file_of_a_group_is_read(tmp_path):
    path = tmp_path / "optimizer.yaml"
    path.write_text("{name: adam, lr: 0.25}\n", encoding="utf-8")
    for arguments in (["--optimizer", str(path)], [f"--optimizer={path}"]):
        config = override(BASE, arguments)
        assert (config.optimizer.name, config.optimizer.lr) == ("adam", 0.25)


@pytest.mark.parametrize(
    ("content", "key", "lines"),
    [
        ("steps: 1\nseed: 2\nsteps: 3", "steps", (3, 1)),
        ("a:\n  lr: 1\n  'lr': 2", "lr", (3, 2)),
        ("[{b: 1, b: 2}]", "b", (1, 1)),
    ],
)
def test_a_key_that_is_there_twice_is_an_error_that_names_both_lines(tmp_path, content, key, lines):
    with pytest.raises(ValueError, match=rf"line {lines[0]}: .*'{key}'.* line {lines[1]}$"):
        read(tmp_path, content)
    with pytest.raises(ValueError, match="'a'"):
        override(BASE, ["--model.options", "{a: 1, a: 2}"])


def test_the_files_of_this_package_have_no_key_twice():
    files = sorted(Path(bitcycle_lab.__file__).parent.rglob("*.yaml"))
    assert len(files) > 10
    for file in files:
        pending = [yaml.compose(file.read_text(encoding="utf-8"))]
        while pending:
            node = pending.pop()
            if isinstance(node, yaml.MappingNode):
                keys = [key.value for key, _ in node.value]
                assert len(set(keys)) == len(keys), (file.name, keys)
                pending += [value for _, value in node.value]
            elif isinstance(node, yaml.SequenceNode):
                pending += node.value


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a: 1\nb: [1", "file.yaml, line 2: while parsing a flow sequence, expected ',' or ']'"),
        ("[" * 1_000, "nested too deeply"),
        ("a: &a [*a]", "alias *a"),
        ("a: 2026-13-45", "month must be in 1..12"),
        ("a: !!bool maybe", "maybe"),
        ("a: !!timestamp never", "groupdict"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("a: 1\n---\na: 2", "expected a single document"),
        (b"\xff\xfe\x00", "is not a text file"),
        ("x" * (MAX_BYTES + 1), "at most 1,048,576"),
    ],
)
def test_anything_else_is_one_line_that_names_the_file(tmp_path, content, reason):
    with pytest.raises(ValueError, match="file") as caught:
        read(tmp_path, content)
    message = str(caught.value)
    assert reason in message
    assert "\n" not in message
    assert message.startswith(str(tmp_path / "file.yaml"))


def test_a_file_of_another_form_is_refused_and_one_without_a_form_is_not(tmp_path):
    assert to_yaml(BASE).startswith(f"form: {FORM}\n")
    path = tmp_path / "run.yaml"
    path.write_text("steps: 100\n", encoding="utf-8")
    assert read_config(path) == BASE
    for form in (FORM + 1, f"'{FORM}'", "true", "null"):
        path.write_text(f"form: {form}\nsteps: 100\n", encoding="utf-8")
        with pytest.raises(ValueError, match=rf"run\.yaml has form .*{FORM}"):
            read_config(path)


@pytest.mark.parametrize(
    ("value", "skip"),
    [
        ("re:layer[1,2].*", ("re:layer[1,2].*",)),
        ("[lf]*", ("[lf]*",)),
        ("[lf]*,fc", ("[lf]*", "fc")),
        ("[first, fc]", ("first", "fc")),
        ('["first"]', ("first",)),
        ("first, fc", ("first", "fc")),
    ],
)
def test_a_pattern_with_brackets_or_commas_is_one_pattern(value, skip):
    assert override(RunConfig(steps=10), ["--precision.skip", value]).precision.skip == skip
    assert override(RunConfig(steps=10), [f"--precision.skip={value}"]).precision.skip == skip
