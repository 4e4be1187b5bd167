"""The model's and the data's part of a configuration."""

import dataclasses

import pytest

from bitcycle.tasks import DataConfig, ModelConfig


@pytest.mark.parametrize("name", ["batch_size", "eval_batch_size", "sequence_length"])
def test_a_count_below_one_is_an_error_that_names_it(name):
    with pytest.raises(ValueError, match=rf"data\.{name} \(0\) must be at least 1"):
        DataConfig(**{name: 0})


@pytest.mark.parametrize("name", ["subset", "validation"])
@pytest.mark.parametrize(
    ("amount", "rule"),
    [
        (0, "as a number must be at least 1"),
        (-3, "as a number must be at least 1"),
        (0.0, "as a fraction must be between 0 and 1"),
        (1.5, "as a fraction must be between 0 and 1"),
    ],
)
def test_an_amount_is_a_number_or_a_fraction(name, amount, rule):
    with pytest.raises(ValueError, match=rf"data\.{name} \({amount}\) {rule}"):
        DataConfig(**{name: amount})


def test_amounts_in_range_are_taken():
    assert DataConfig(subset=100, validation=0.1).subset == 100


def test_a_vocabulary_has_room_for_the_marks_and_a_word():
    assert DataConfig(vocabulary=3).vocabulary == 3
    with pytest.raises(ValueError, match=r"data.vocabulary \(2\) must be at least 3: <unk>, <eos>"):
        DataConfig(vocabulary=2)


def test_configurations_are_frozen_and_by_keyword():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig().name = "other"
    with pytest.raises(TypeError):
        DataConfig("digits")


def test_a_name_is_the_tasks_business():
    assert ModelConfig(name="whatever", options={"depth": 3}).name == "whatever"
    assert DataConfig(name="my-measurements").name == "my-measurements"
