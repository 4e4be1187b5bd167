"""Every recipe as a run: schedules fit, the settings survive YAML, the patterns match the model."""

import pytest
import yaml

from bitcycle.convert import quantize_model
from bitcycle.schedules import parse_schedule
from bitcycle_lab.models import build_model
from bitcycle_lab.recipes import list_recipes, recipe
from bitcycle_lab.train.config_file import from_dict, to_yaml

CONFIGS = [recipe(info.name) for info in list_recipes()]
STEPS_PER_EPOCH = {
    "imagenet": 5005,  # ceil(1,281,167 / 256)
    "ptb": 1328,  # (929,589 / 20 - 1) / 35
    "xnli": 6136,  # ceil(392,702 / 64)
}


def total_of(config):
    if config.steps is not None:
        return config.steps
    return round(config.epochs * STEPS_PER_EPOCH[config.data.name])


def test_the_schedules_of_every_recipe_fit_its_steps():
    for config in CONFIGS:
        total = total_of(config)
        for text in config.precision.schedule_texts().values():
            for inner in text.values() if isinstance(text, dict) else [text]:
                schedule = parse_schedule(inner)
                schedule(0, total)  # raises when the run cannot hold it
                if not schedule.is_adaptive:
                    schedule(total - 1, total)


def test_every_full_size_run_of_cpt_ends_at_its_top():
    runs = {(c.precision.forward, total_of(c)) for c in CONFIGS if "-cpt-" in c.name}
    for text, total in runs:
        schedule = parse_schedule(text)
        if not str(text).startswith("delay@1.0"):
            assert schedule(total - 1, total) == schedule.high, text


def kinds_of_recipes():
    """One recipe for every task, policy, optimizer and kind of schedule: the settings differ."""
    chosen, seen = [], set()
    for config in CONFIGS:
        heads = [str(text).partition(":")[0] for text in config.precision.schedule_texts().values()]
        traits = {config.task, config.lr.policy, config.optimizer.name, *heads}
        if not traits <= seen:
            chosen.append(config)
            seen |= traits
    return chosen


def test_a_recipe_of_every_kind_survives_the_way_through_a_file():
    for config in kinds_of_recipes():
        assert from_dict(yaml.safe_load(to_yaml(config))) == config, config.name


@pytest.mark.slow
def test_every_recipe_survives_the_way_through_a_file():
    for config in CONFIGS:
        assert from_dict(yaml.safe_load(to_yaml(config))) == config


def test_every_recipe_lets_the_kernel_be_chosen():
    assert {config.precision.kernel for config in CONFIGS} == {"auto"}


def test_a_recipe_for_float32_has_no_bits():
    for config in CONFIGS:
        is_for_float = "float32" in config.name or "fp32" in config.name
        assert config.precision.is_float or not is_for_float, config.name


@pytest.mark.parametrize(
    ("name", "kept_float"),
    [
        ("cifar10-mobilenetv2-cpt-4-8-8", {"fc"}),
        ("digits-cpt-3-8-8", {"fc"}),
        (
            "imagenet-resnet50-cpt-4-8-8",
            {"conv1", "fc", *(f"layer{n}.0.downsample.0" for n in (1, 2, 3, 4))},
        ),
        ("wikitext2-transformer-cpt-4-8-8-small", set()),
        ("wikitext2-lstm-cpt-5-8-8-small", set()),
    ],
)
def test_the_layers_that_stay_float_are_the_published_ones(name, kept_float):
    config = recipe(name)
    options = dict(config.model.options)
    if config.task == "language":
        options["vocab_size"] = 50
    model = build_model(config.model.name, **options)
    quantize_model(model, skip=config.precision.skip)
    multiplying = {
        name
        for name, module in model.named_modules()
        if type(module).__name__ in ("Conv2d", "Linear", "MatMul", "LSTM")
    }
    assert multiplying == kept_float
