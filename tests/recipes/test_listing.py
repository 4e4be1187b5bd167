"""Groups of recipes, and words that filter them."""

import dataclasses

import pytest

from bitcycle.recipes import FAMILIES, Recipe, list_recipes, recipe
from bitcycle.recipes.listing import find_recipes


def names(*words):
    return {group.name: [info.name for info in group.recipes] for group in find_recipes(words)}


def test_small_recipes_come_first_then_the_tables_in_order():
    tables = [f"CPT Table {n}" for n in range(1, 9)]
    assert list(names()) == ["small", "small, own data", *tables, "CPT Fig. 5", "follow-up"]


def test_every_recipe_is_in_a_group():
    shown = {name for members in names().values() for name in members}
    assert shown == {info.name for info in list_recipes()}


def test_base_recipes_are_at_the_top_and_numbers_count():
    found = names()
    assert found["small"][0] == "digits"
    assert found["small, own data"][:2] == ["cifar10-resnet8", "cifar10-resnet20"]
    assert found["CPT Table 7"][:2] == ["cifar100-resnet38", "cifar100-resnet74"]
    starts = [name for name in found["CPT Table 7"] if "resnet38-cpt-3-8-8" in name]
    assert [name.partition("start")[2] for name in starts] == ["", "60", "80", "100", "120", "160"]
    assert found["follow-up"] == ["arxiv-gcn", "ptb-lstm800", "xnli-mbert"]


@pytest.mark.parametrize(
    ("words", "groups"),
    [
        (["table8", "STATIC"], {"CPT Table 8": 2}),
        (["table", "4", "resnet18"], {"CPT Table 4": 3}),  # the base, CPT, float32
        (["Table 4", "resnet18"], {"CPT Table 4": 3}),
        (["fig.", "5", "110"], {"CPT Fig. 5": 5}),
        (["lstm_lm", "ptb"], {"CPT Table 5": 5, "follow-up": 1}),  # by its model
        (["ogbn-arxiv"], {"follow-up": 1}),  # by its data
        (["small", "sage", "cora"], {"small, own data": 4}),
        (["tables", "8", "static"], {"CPT Table 8": 2}),
        (["figure 5", "110"], {"CPT Fig. 5": 5}),
        (["resnet164", "cpt"], {"CPT Table 2": 4, "CPT Table 6": 2}),
        (["tables", "gradcycle"], {"CPT Table 8": 4}),
    ],
)
def test_all_words_must_occur_in_name_table_model_or_data(words, groups):
    assert {group: len(members) for group, members in names(*words).items()} == groups


def test_a_recipe_of_two_tables_has_the_value_of_each():
    found = find_recipes(["cifar100-resnet164-cpt-3-8-8"])
    assert {group.name: group.published(group.recipes[0]) for group in found} == {
        "CPT Table 2": "72.90 %",
        "CPT Table 6": "72.70 %",
    }
    [table5] = find_recipes(["ptb-lstm-cpt-5-8-8"])
    assert table5.published(table5.recipes[0]) == "96.39 ppl"


def test_notes_name_their_recipe_and_speak_of_costs_only_where_they_are_shown():
    notes = {group.name: group.notes for group in find_recipes()}
    assert notes["CPT Table 3"] == ()
    assert any("start160" in note for note in notes["CPT Table 7"])
    assert all(note.startswith("ptb-lstm") for note in notes["CPT Table 5"])
    [group] = find_recipes(["table3", "resnet18-cpt-4-8-8"])
    costs = [p for p in group.recipes[0].published if p.metric == "cost"]
    info = dataclasses.replace(group.recipes[0], published=tuple(costs))
    [note] = dataclasses.replace(group, recipes=(info,)).notes
    assert note.startswith("published costs")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["citeser"], "did you mean citeseer?"),
        (["ptb", "resnet18"], "each word occurs alone"),
        (["table8", "cpt"], "each word occurs alone"),  # a method, not a part of the title
        (["xyzzy"], "table"),
    ],
)
def test_nothing_found_is_an_error_with_a_hint(words, hint):
    with pytest.raises(ValueError, match=" and ".join(words)) as error:
        find_recipes(words)
    assert hint in str(error.value)


def test_a_recipe_of_ones_own_is_listed(monkeypatch):
    config = dataclasses.replace(recipe("digits-cpt-3-8-8"), name="my-own")
    monkeypatch.setitem(FAMILIES._entries, "my-own", lambda: [Recipe(config=config)])
    assert names("my-own") == {"others": ["my-own"]}
