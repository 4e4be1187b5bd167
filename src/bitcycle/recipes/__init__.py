"""The papers' experiments, and small ones, by name: each a whole `RunConfig`.

>>> config = recipe("cifar100-resnet74-cpt-3-8-8")
>>> config.steps, config.precision.forward, config.precision.backward
(64000, 'CR:3-8:32', 8)
>>> [info.published[0].value for info in list_recipes() if info.name == config.name]
[72.35]

A recipe is changed by editing a copy: `dataclasses.replace(config, seed=1)`.

To add recipes, drop one file into this folder, and a test beside the others in `tests/recipes`: a
function that yields `Recipe` objects, decorated with `@FAMILIES.register("name")`. The name of a
recipe is its configuration's name. One that several tables contain is yielded once for each, with
equal configurations; the cells and published values are put together.
"""

from bitcycle.published import Published
from bitcycle.recipes.base import (
    FAMILIES,
    Recipe,
    RecipeInfo,
    list_recipes,
    recipe,
)

__all__ = ["FAMILIES", "Published", "Recipe", "RecipeInfo", "list_recipes", "recipe"]
