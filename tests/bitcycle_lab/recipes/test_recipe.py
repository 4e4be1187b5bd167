"""Recipes by name: lookup, listing, base recipes and their bits."""

import dataclasses

import pytest
import torch

from bitcycle.audit import audit
from bitcycle.convert import quantize_model
from bitcycle.quantizers import QUANTIZERS
from bitcycle.registry import closest
from bitcycle.schedules.cycle import Cycle
from bitcycle_lab.data import DATASETS
from bitcycle_lab.models import build_model
from bitcycle_lab.recipes import list_recipes, recipe, recipe_names, with_bits
from bitcycle_lab.recipes.notation import KEEPS_ENDS
from bitcycle_lab.recipes.notation import QUANTIZERS as LABELS
from bitcycle_lab.recipes.recipe import BUILT_IN, Recipe, _by_name, _merge
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.config_file import from_dict, override
from bitcycle_lab.train.config_id import config_id

INFOS = {info.name: info for info in list_recipes()}
BASES = [name for name, info in INFOS.items() if info.cycles]


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


def test_every_cell_of_a_table_has_its_own_recipe():
    # 2 networks x 4 precisions x 4 rates; 3 networks x 2 datasets x 2 bits x 4 methods; ...
    tables = [sum(f"CPT Table {n}" in info.cells for info in INFOS.values()) for n in range(1, 9)]
    assert tables == [32, 48, 12, 4, 8, 18, 24, 6]


def test_every_other_full_size_recipe_has_a_published_cost_or_is_a_base():
    others = [i for i in INFOS.values() if i.scale == "full" and "Table" not in str(i.cells)]
    assert all(info.cycles or "CPT Fig. 5" in info.cells for info in others)


def test_a_cell_of_several_tables_is_one_recipe_with_all_published_values():
    info = INFOS["cifar100-resnet164-cpt-3-8-8"]
    assert info.cells == ("CPT Table 2", "CPT Table 6")
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


def test_the_datasets_that_need_no_files_are_known_without_reading_their_list():
    assert {name for name in DATASETS.names() if not DATASETS[name].needs_root} == set(BUILT_IN)
    assert INFOS["digits"].needs_data is None
    assert INFOS["arxiv-gcn"].needs_data == "ogbn-arxiv"


@pytest.mark.parametrize("name", BASES)
def test_a_base_recipe_is_float32(name):
    assert recipe(name).precision.is_float


@pytest.mark.parametrize(
    ("base", "cell"),
    [
        ("cifar100-resnet74", "cifar100-resnet74-cpt-3-8-8"),
        ("imagenet-resnet50", "imagenet-resnet50-cpt-4-8-8"),
        ("ptb-lstm", "ptb-lstm-static-6-8"),
        ("wikitext103-transformer", "wikitext103-transformer-cpt-4-6-8"),
        ("digits", "digits-static-3-8"),
        ("cifar10-resnet8", "cifar10-resnet8-cpt-3-6-6-small"),
        ("wikitext2-lstm", "wikitext2-lstm-cpt-5-8-8-small"),
        ("cora-sage", "cora-sage-cpt-3-8-8"),
        ("snli-bert", "snli-bert-cpt-5-8-8-small"),
    ],
)
def test_a_base_recipe_with_a_cell_s_bits_as_options_is_the_run_of_that_cell(base, cell):
    precision = recipe(cell).precision
    words = ["--precision.forward", f"{precision.forward}"]
    words += ["--precision.backward", f"{precision.backward}"]
    assert config_id(override(recipe(base), words)) == config_id(recipe(cell))


def test_a_base_recipe_takes_each_of_the_ten_schedules():
    base = recipe("arxiv-gcn")
    for name in Cycle.names():
        config = with_bits("arxiv-gcn", f"{name} 3-6/6")
        assert config.name == f"arxiv-gcn-{name.lower()}-3-6-6"
        assert (config.precision.forward, config.precision.backward) == (f"{name}:3-6:8", 6)
        assert dataclasses.replace(config, name=base.name, precision=base.precision) == base


def test_a_misspelt_name_is_an_error_with_the_nearest_one():
    with pytest.raises(ValueError, match="did you mean 'cifar100-resnet74-cpt-3-8-8'"):
        recipe("cifar100-resnet74-ctp-3-8-8")


def test_a_quantizer_keeps_the_layers_float_that_its_authors_do():
    keeps_ends = {name for name, kind in QUANTIZERS.items() if kind().first_last == "float32"}
    assert keeps_ends == set(KEEPS_ENDS)
    assert set(LABELS.values()) == set(QUANTIZERS.names()) - {"sbm", "fp8", "mx", "nvfp4"}
    for label, name in LABELS.items():
        config = with_bits("cifar10-resnet8", f"{label} CPT 3-8/8")
        assert config.precision.quantizer == name
        assert config.precision.skip == (("conv1", "fc") if name in keeps_ends else ("fc",))


def test_a_name_that_no_registry_has_is_an_error_when_the_recipe_is_asked_for(monkeypatch):
    monkeypatch.delitem(QUANTIZERS._entries, "dorefa")
    with pytest.raises(ValueError, match="'dorefa'"):
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


def test_one_recipe_is_built_when_one_is_asked_for(monkeypatch):
    built = []
    build = Recipe.build
    monkeypatch.setattr(Recipe, "build", lambda self: built.append(self) or build(self))
    assert recipe("cifar100-resnet74-cpt-3-8-8").name == "cifar100-resnet74-cpt-3-8-8"
    assert len(built) == 1


def test_one_name_with_two_settings_is_an_error():
    settings = {"steps": 9}
    with pytest.raises(ValueError, match="'mine'"):
        _merge("mine", Recipe(settings=settings), Recipe(settings={"steps": 10}))


def test_the_names_are_those_of_the_list():
    assert recipe_names() == list(INFOS)


def test_a_recipe_is_read_as_a_file_of_a_user_would_be():
    for name, entry in _by_name().items():
        assert entry.build() == from_dict(entry.settings), name


def test_a_name_without_its_last_part_is_taken_for_one_that_continues_it():
    with pytest.raises(ValueError, match="'digits-cpt-3-8-8'"):
        recipe("digits-cpt-3-8")
    names = recipe_names()
    for name in names:
        short = name.rpartition("-")[0]
        if "-" in short and short not in names:
            likely = closest(short, names)
            assert likely is None or likely.startswith(f"{short}-"), (short, likely)
