"""Complete runs by name: every cell of CPT's tables, small runs, and base recipes for the rest.

>>> config = recipe("cifar100-resnet74-cpt-3-8-8")
>>> config.steps, config.precision.forward, config.precision.backward
(64000, 'CR:3-8:32', 8)
>>> [info.published[0].value for info in list_recipes() if info.name == config.name]
[72.35]

Change a recipe by editing a copy: `dataclasses.replace(config, seed=1)`. A base recipe, such as
`arxiv-gcn`, trains in float32 until it is given bits, and keeps the layers float32 that its paper
does:

>>> from bitcycle_lab.recipes.base import with_bits
>>> with_bits(recipe("arxiv-gcn"), "RT-V", "3-8/8", cycles=8).precision.forward
'RT-V:3-8:8'

To add recipes, add a file to this folder and a test to `tests/bitcycle_lab/recipes`. Write a function that
yields `Recipe` objects and decorate it with `@FAMILIES.register("name")`. A recipe is found by the
name of its configuration. A recipe that is a cell of several tables is yielded once for each, with
equal configurations; its published values are merged.
"""

from bitcycle_lab.published import Published
from bitcycle_lab.recipes.base import (
    FAMILIES,
    Recipe,
    RecipeInfo,
    find_recipes,
    list_recipes,
    recipe,
)

__all__ = [
    "FAMILIES",
    "Published",
    "Recipe",
    "RecipeInfo",
    "find_recipes",
    "list_recipes",
    "recipe",
]
