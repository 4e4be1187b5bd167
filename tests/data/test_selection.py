"""Subsets and held-out validation sets are disjoint, fixed by their seed, and keep indices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitcycle.data import ImageArrays, Key, OnePass, select


def images(number: int = 100) -> ImageArrays:
    return ImageArrays(
        pixels=torch.randint(0, 256, (number, 1, 4, 4), dtype=torch.uint8),
        targets=torch.arange(number),
        mean=(0.0,),
        std=(1.0,),
        padding=2,
        flip=True,
    )


def numbers(samples) -> list[int]:
    return [int(t) for batch in OnePass(samples, batch_size=7) for t in batch.targets]


@settings(deadline=None)
@given(st.integers(2, 80), st.integers(1, 79), st.floats(0.1, 1.0), st.integers(0, 50))
def test_training_and_validation_are_disjoint_and_as_large_as_asked(number, held, subset, seed):
    held = min(held, number - 1)
    if round(subset * (number - held)) == 0:
        return
    train, validation = select(images(number), validation=held, subset=subset, seed=seed)
    assert len(validation) == held
    assert len(train) == round(subset * (number - held))
    assert not set(numbers(train)) & set(numbers(validation))


def test_the_choice_is_a_function_of_the_seed():
    first, again, other = (numbers(select(images(), subset=20, seed=s)[0]) for s in (1, 1, 2))
    assert first == again == sorted(first)
    assert first != other


def test_the_validation_set_does_not_depend_on_the_subset():
    _, validation = select(images(), validation=0.1, seed=3)
    _, with_subset = select(images(), validation=0.1, subset=10, seed=3)
    assert numbers(validation) == numbers(with_subset)


def test_a_chosen_sample_is_augmented_as_it_is_in_the_whole_set():
    samples = images()
    train, _ = select(samples, subset=10, seed=0)
    inputs, targets = train.fetch(np.array([4]), Key(5, 6))
    whole, _ = samples.fetch(targets.numpy(), Key(5, 6))
    assert torch.equal(inputs, whole)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"subset": 0}, "subset"),
        ({"subset": 101}, r"1\.\.100"),
        ({"subset": 1.5}, "fraction"),
        ({"subset": 0.001}, "choose"),
        ({"subset": True}, "not True"),
        ({"validation": -3}, "validation"),
        ({"validation": 100}, "leaves none"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(request_, message):
    with pytest.raises(ValueError, match=message):
        select(images(), **request_)
