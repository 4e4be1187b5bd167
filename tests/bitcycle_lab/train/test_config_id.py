"""Which settings make another run."""

from dataclasses import replace

import pytest

from bitcycle_lab.recipes import recipe
from bitcycle_lab.tasks import DataConfig, ModelConfig
from bitcycle_lab.train.config import (
    CheckpointConfig,
    EvalConfig,
    OptimizerConfig,
    PrecisionConfig,
    RangeTestConfig,
    RunConfig,
    TrackingConfig,
)
from bitcycle_lab.train.config_file import from_dict, to_dict
from bitcycle_lab.train.config_id import config_id, drop_defaults
from tests.bitcycle_lab.study.small_studies import tiny


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"seed": 7},
        {"output": "elsewhere"},
        {"tracking": TrackingConfig(log_every=1, tensorboard=False)},
        {"checkpoint": CheckpointConfig(every=1)},
        {"data": replace(tiny().data, root="somewhere", cache_dir="there")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_where_files_lie_and_what_is_tracked_is_no_part_of_a_run(changes):
    assert config_id(replace(tiny(), **changes)) == config_id(tiny())


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 5},
        {"threads": 2},
        {"eval": EvalConfig(every=2)},
        {"data": replace(tiny().data, batch_size=16)},
        {"precision": PrecisionConfig(forward=7, backward=8)},
        {"precision": PrecisionConfig(forward={"fc1": 7}, backward=8)},
        {"deterministic": False},
    ],
    ids=str,
)
def test_any_other_setting_makes_another_run(changes):
    assert config_id(replace(tiny(), **changes)) != config_id(tiny())


def test_of_a_models_folder_only_its_own_name_counts():
    models = [ModelConfig(name="bert", path=path) for path in ("a/large", "b/large", "a/small")]
    data = DataConfig(name="xnli", root="x")
    ids = [config_id(replace(tiny(), task="pairs", model=m, data=data)) for m in models]
    assert ids[0] == ids[1] != ids[2]


def test_a_configuration_that_went_through_a_file_is_the_same_run():
    for config in (
        tiny("8"),
        tiny(8, optimizer=OptimizerConfig(lr=1), clip_norm=1),
        recipe("digits-cpt-3-8-8"),
        recipe("cifar10-resnet8-float32-small"),
    ):
        assert config_id(from_dict(to_dict(config))) == config_id(config)
    assert config_id(tiny("8")) == config_id(tiny(8))


def test_a_setting_at_its_default_is_no_part():
    config = tiny()
    settings = to_dict(config)
    later = {**settings, "data": {**settings["data"], "added_later": None}, "also_new": {"a": 1}}
    defaults = {**to_dict(RunConfig(steps=1)), "also_new": {"a": 1}}
    defaults["data"] = {**defaults["data"], "added_later": None}
    assert drop_defaults(later, defaults) == drop_defaults(settings, to_dict(RunConfig(steps=1)))
    later["data"]["added_later"] = 3
    assert drop_defaults(later, defaults)["data"]["added_later"] == 3


def test_ids_stay_the_same_from_version_to_version():
    """A changed id would train finished studies again: if it must change, say so in the changes."""
    config = recipe("digits-cpt-3-8-8")
    assert config_id(config) == "ce57bca2ba"
    simulated = replace(config, precision=replace(config.precision, kernel="simulate"))
    assert config_id(simulated) == "99b5c45650"  # what the recipe was before it took `auto`
    assert config_id(recipe("cifar10-resnet8-float32-small")) == "e3afcad365"


def test_the_range_test_counts_where_there_is_one():
    half, paper = RangeTestConfig(share=0.5), RangeTestConfig(threshold=20.0)
    for settings in (half, paper):
        assert config_id(replace(tiny(), range_test=settings)) == config_id(tiny())
    searched = replace(tiny(), precision=PrecisionConfig(forward="CR:auto-8:2", backward=8))
    ids = {config_id(replace(searched, range_test=each)) for each in (half, paper)}
    assert len({config_id(searched), *ids}) == 3
    named = replace(searched, range_test=replace(paper, criterion="paper"))
    assert config_id(named) in ids
