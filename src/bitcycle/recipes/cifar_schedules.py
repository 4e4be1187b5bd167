"""The follow-up's ten schedules on CPT's ResNet-74."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bitcycle.recipes.base import FAMILIES, Recipe
from bitcycle.recipes.cifar import cifar
from bitcycle.recipes.parts import FEW_CYCLES, TEN

NOTES = ("follow-up paper", "the network on CIFAR is our choice: CPT's ResNet-74")


@FAMILIES.register("schedules-cifar")
def ten_schedules_on_cifar() -> Iterator[Recipe]:
    """Each at 8 cycles, on both datasets; the static run is that of CPT Table 2."""
    for dataset in ("cifar10", "cifar100"):
        for method in TEN:
            config = cifar(dataset, "resnet74", method, "3-8/8", cycles=FEW_CYCLES)
            yield Recipe(config=replace(config, name=config.name.lower()), notes=NOTES)
