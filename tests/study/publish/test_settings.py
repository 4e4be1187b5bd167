"""Configurations as the settings that are not the default."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.recipes import list_recipes, recipe
from bitcycle.study.identity import config_id
from bitcycle.study.publish.settings import from_settings, to_settings
from bitcycle.train.config import RunConfig

NAMES = sorted(info.name for info in list_recipes())


@given(name=st.sampled_from(NAMES))
def test_every_recipe_comes_back_as_it_was(name):
    config = recipe(name)
    again = from_settings(to_settings(config))
    assert (again.name, config_id(again)) == (name, config_id(config))


def test_what_belongs_to_a_run_or_a_machine_is_left_out():
    config = RunConfig(name="a", steps=3, seed=7, output="/home/me/runs")
    assert to_settings(config) == {"name": "a", "steps": 3}


def test_a_setting_that_is_gone_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="there is no setting 'colour' in RunConfig"):
        from_settings({"steps": 1, "colour": 1})
