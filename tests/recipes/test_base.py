"""Recipes by name: lookup, listing, what depends on registered quantizers and layers."""

import dataclasses
from collections import Counter

import pytest

from bitcycle.nn import LAYERS
from bitcycle.quantizers import QUANTIZERS
from bitcycle.quantizers.sbm import SBM
from bitcycle.recipes import FAMILIES, Recipe, list_recipes, recipe
from bitcycle.recipes.base import _merge
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


def test_a_name_like_no_other_is_not_guessed():
    with pytest.raises(ValueError, match=r"^unknown recipe 'x' \(all \d+: bitcycle ls recipes\)$"):
        recipe("x")


def test_upper_case_still_finds_the_nearest():
    with pytest.raises(ValueError, match="nearest: digits-cpt-3-8-8"):
        recipe("DIGITS-CPT-3-8-8")


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        ("CPT Table 1", 32),  # 2 networks x 4 precisions x 4 rates
        ("CPT Table 2", 24),  # 3 networks x 2 datasets x (2 static + 2 CPT); 48 with all quantizers
        ("CPT Table 3", 12),
        ("CPT Table 4", 4),
        ("CPT Table 5", 8),
        ("CPT Table 6", 18),
        ("CPT Table 7", 24),
        ("CPT Table 8", 6),
        ("CPT Fig. 1", 3),
        ("CPT Fig. 5", 34),  # 5 ResNets x 6 + MobileNetV2 x 4
        ("CPT Fig. 6", 3),
        ("CPT Fig. 7", 14),  # 2 networks x 7 upper bounds
        ("CPT Fig. 8", 12),  # 2 networks x 6 numbers of cycles
    ],
)
def test_every_cell_of_a_table_has_its_own_recipe(cell, count):
    assert sum(cell in info.cells for info in INFOS.values()) == count


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


def test_scale_and_data_tell_what_a_user_needs():
    assert Counter(info.needs_data for info in INFOS.values())[None] == 16  # the digits
    assert INFOS["digits-cpt-3-8-8"].scale == "small"
    assert INFOS["wikitext2-lstm-cpt-5-8-8-small"].needs_data == "wikitext-2"
    assert INFOS["imagenet-resnet50-cpt-4-8-8"].scale == "full"


def test_recipes_of_a_quantizer_appear_when_it_is_registered(monkeypatch):
    assert "cifar10-mobilenetv2-dorefa-8-8" not in INFOS
    monkeypatch.setitem(QUANTIZERS._entries, "dorefa", SBM)
    listed = {info.name: info for info in list_recipes()}
    new = sorted(set(listed) - set(INFOS))
    assert len(new) == 12  # 3 networks x 2 datasets x 8/8 and 6/6
    info = listed["cifar10-mobilenetv2-dorefa-8-8"]
    assert info.results[0].value == 91.03
    config = recipe(info.name)
    assert (config.precision.quantizer, config.precision.skip) == ("dorefa", ("conv1", "fc"))


@pytest.mark.parametrize(
    ("name", "layer", "words"),
    [
        ("ptb-lstm-cpt-5-8-8", "torch.nn.modules.rnn.LSTM", "the LSTM and the embedding stay"),
        ("arxiv-gcn-cr-3-8-8", "torch_geometric.nn.conv.gcn_conv.GCNConv", "refuses to start"),
    ],
)
def test_a_description_says_what_stays_float_until_there_is_a_layer(
    monkeypatch, name, layer, words
):
    assert words in INFOS[name].description
    monkeypatch.setitem(LAYERS._entries, layer, object)
    assert words not in {info.name: info for info in list_recipes()}[name].description


def test_a_family_of_ones_own_is_found_by_name(monkeypatch):
    config = dataclasses.replace(recipe("digits-cpt-3-8-8"), name="mine", steps=10)
    monkeypatch.setitem(FAMILIES._entries, "mine", lambda: [Recipe(config=config, scale="small")])
    assert recipe("mine") == config


def test_one_name_with_two_configurations_is_an_error():
    config = recipe("digits-cpt-3-8-8")
    other = dataclasses.replace(config, steps=10)
    with pytest.raises(ValueError, match="'digits-cpt-3-8-8' is defined twice"):
        _merge(Recipe(config=config), Recipe(config=other))
