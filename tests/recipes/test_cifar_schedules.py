"""The ten schedules on CIFAR."""

import pytest

from bitcycle.recipes import recipe
from bitcycle.schedules.cycle import Cycle


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_every_schedule_has_a_recipe_at_eight_cycles(dataset):
    for name in Cycle.named():
        config = recipe(f"{dataset}-resnet74-{name.lower()}-3-8-8-n8")
        assert (config.precision.forward, config.precision.backward) == (f"{name}:3-8:8", 8)
        assert (config.steps, config.data.name) == (64_000, dataset)
