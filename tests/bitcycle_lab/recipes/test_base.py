"""Base recipes as data: what their files may hold, and how changes are applied."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle_lab.recipes.base import DEFAULTS, change, find_base

KEYS = st.sampled_from(["a", "b", "c"])
SETTINGS = st.dictionaries(KEYS, st.dictionaries(KEYS, st.integers(), min_size=1))


def test_a_base_recipe_has_the_settings_that_its_file_shares():
    base = find_base("cifar100-resnet110")
    assert base.config["optimizer"] == find_base("cifar10-resnet74").config["optimizer"]
    assert base.config["data"] == {"batch_size": 128, "name": "cifar100"}
    assert (base.cycles, base.scale, base.steps) == (32, "full", 64_000)


@given(SETTINGS, SETTINGS)
def test_nested_and_dotted_changes_are_the_same_and_leave_the_settings_alone(settings, changes):
    before = repr(settings)
    dotted = {f"{k}.{name}": v for k, group in changes.items() for name, v in group.items()}
    expected = {**settings, **{k: {**settings.get(k, {}), **g} for k, g in changes.items()}}
    assert change(settings, changes) == change(settings, dotted) == expected
    assert repr(settings) == before


def test_a_value_that_is_a_mapping_replaces_and_does_not_merge():
    changed = change({"model": {"options": {"a": 1}}}, {"model.options": {"b": 2}})
    assert changed == {"model": {"options": {"b": 2}}}


def test_a_group_goes_back_to_its_defaults():
    assert change({"precision": {"skip": ["fc"]}, "steps": 9}, {"precision": DEFAULTS}) == {
        "steps": 9
    }


@pytest.mark.parametrize("changes", [{"precision": 3, "precision.skip": []}, {"steps.x": 1}])
def test_a_value_in_place_of_a_group_is_an_error(changes):
    with pytest.raises(ValueError, match="not a group"):
        change({"steps": 9}, changes)
