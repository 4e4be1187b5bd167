"""Recipes by name: lookup, listing, what depends on registered quantizers and layers."""

import dataclasses

import pytest
import torch

from bitcycle.audit import audit
from bitcycle.convert import quantize_model
from bitcycle.models import build_model
from bitcycle.quantizers import QUANTIZERS
from bitcycle.recipes import FAMILIES, Recipe, list_recipes, recipe
from bitcycle.recipes.base import SKIPPED, _merge
from bitcycle.train.config import RunConfig

INFOS = {info.name: info for info in list_recipes()}


def test_names_are_unique_sorted_and_usable_in_a_shell():
    names = [info.name for info in list_recipes()]
    assert names == sorted(set(names))
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.") for name in names)


def test_a_recipe_is_a_whole_run_under_its_own_name():
    for name in INFOS:
        config = recipe(name)
        assert isinstance(config, RunConfig)
        assert (config.name, config.seed, config.output) == (name, 0, "runs")
        assert config.data.root is None


def test_a_caller_who_changes_a_recipe_does_not_change_the_next_one():
    recipe("ptb-lstm-cpt-5-8-8").model.options["num_layers"] = 7
    assert recipe("ptb-lstm-cpt-5-8-8").model.options["num_layers"] == 2


def test_an_unknown_name_shows_the_nearest_few_and_how_to_list():
    with pytest.raises(ValueError, match="unknown recipe 'cifar100-resnet74-ctp-3-8-8'") as error:
        recipe("cifar100-resnet74-ctp-3-8-8")
    message = str(error.value)
    assert "nearest: cifar100-resnet74-cpt-3-8-8, " in message
    assert "bitcycle ls recipes" in message
    assert len(message) < 300


def test_every_cell_of_a_table_has_its_own_recipe():
    # 2 networks x 4 precisions x 4 rates; 3 networks x 2 datasets x 2 bits x 4 methods; ...
    tables = [sum(f"CPT Table {n}" in info.cells for info in INFOS.values()) for n in range(1, 9)]
    assert tables == [32, 48, 12, 4, 8, 18, 24, 6]
    # 5 ResNets x 6 + MobileNetV2 x 4; 2 networks x 7 upper bounds; 2 networks x 6 cycle counts
    figures = [sum(f"CPT Fig. {n}" in info.cells for info in INFOS.values()) for n in (5, 7, 8)]
    assert figures == [34, 14, 12]


def test_a_cell_of_several_tables_is_one_recipe_with_all_published_values():
    info = INFOS["cifar100-resnet164-cpt-3-8-8"]
    assert info.cells == ("CPT Fig. 5", "CPT Table 2", "CPT Table 6")
    # the paper disagrees with itself: table 2 has 72.9, table 6 72.7
    assert [(p.where, p.value) for p in info.results] == [
        ("CPT Table 2", 72.9),
        ("CPT Table 6", 72.7),
    ]
    assert [str(p) for p in info.published if p.where == "CPT Table 2"] == [
        "accuracy 72.9 % (CPT Table 2)",
        "cost 3.8e+08 GBitOPs (CPT Table 2)",
        "latency 80.5 h (CPT Table 2)",
    ]


def test_every_quantizer_has_recipes_that_skip_the_layers_it_keeps_float():
    keeps_ends = {name: kind().first_last == "float32" for name, kind in QUANTIZERS.items()}
    assert {name: skip == ("conv1", "fc") for name, skip in SKIPPED.items()} == keeps_ends
    assert INFOS["cifar10-mobilenetv2-dorefa-8-8"].results[0].value == 91.03


def test_a_name_that_no_registry_has_is_an_error_when_the_recipe_is_asked_for(monkeypatch):
    monkeypatch.delitem(QUANTIZERS._entries, "dorefa")
    with pytest.raises(ValueError, match="unknown quantizer 'dorefa'"):
        recipe("cifar10-resnet74-dorefa-8-8")


@pytest.mark.parametrize(
    ("model", "quantizer"), [("resnet74", "dorefa"), ("mobilenetv2", "wageubn")]
)
def test_a_baseline_skips_the_layers_that_its_quantizer_keeps_float_by_itself(model, quantizer):
    config = recipe(f"cifar10-{model}-{quantizer}-8-8")
    assert (config.precision.quantizer, config.precision.skip) == (quantizer, ("conv1", "fc"))
    with torch.device("meta"):
        net = quantize_model(build_model(model), quantizer)  # without skip
    assert [row.name for row in audit(net).float_rows] == ["conv1", "fc"]


def test_a_family_of_ones_own_is_found_by_name(monkeypatch):
    config = dataclasses.replace(recipe("digits-cpt-3-8-8"), name="mine", steps=10)
    monkeypatch.setitem(FAMILIES._entries, "mine", lambda: [Recipe(config=config, scale="small")])
    assert recipe("mine") == config


def test_one_name_with_two_configurations_is_an_error():
    config = recipe("digits-cpt-3-8-8")
    other = dataclasses.replace(config, steps=10)
    with pytest.raises(ValueError, match="'digits-cpt-3-8-8' is defined twice"):
        _merge(Recipe(config=config), Recipe(config=other))
