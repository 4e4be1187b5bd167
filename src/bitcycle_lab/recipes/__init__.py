"""Complete runs by name: every cell of CPT's tables, small runs, and base recipes for the rest.

>>> config = recipe("cifar100-resnet74-cpt-3-8-8")
>>> config.steps, config.precision.forward, config.precision.backward
(64000, 'CR:3-8:32', 8)
>>> [info.published[0].value for info in list_recipes() if info.name == config.name]
[72.35]

Change a recipe by editing a copy: `dataclasses.replace(config, seed=1)`. A base recipe, such as
`arxiv-gcn`, trains in float32 until it is given bits, and keeps the layers float32 that its paper
does:

>>> with_bits("arxiv-gcn", "RT-V 3-8/8").precision.forward
'RT-V:3-8:8'

To add recipes, add them to a YAML file of this folder; `base.py` has its keys. `cells.py` makes the
cells of the published tables.
"""

from bitcycle_lab.published import Published
from bitcycle_lab.recipes.recipe import (
    RecipeInfo,
    find_config,
    find_recipes,
    list_recipes,
    recipe,
    recipe_names,
    with_bits,
)

__all__ = [
    "Published",
    "RecipeInfo",
    "find_config",
    "find_recipes",
    "list_recipes",
    "recipe",
    "recipe_names",
    "with_bits",
]
