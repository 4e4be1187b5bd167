"""Recipes by name: find one, list them, and put bits on a base recipe."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bitcycle.registry import unknown_name
from bitcycle_lab.published import Published
from bitcycle_lab.recipes.base import Scale, Settings, change, find_base, read_bases
from bitcycle_lab.recipes.cells import TABLES, cells_of
from bitcycle_lab.recipes.notation import Notation
from bitcycle_lab.train.config import RunConfig, ScheduleText, unchecked_names
from bitcycle_lab.train.config_file import build_config, read_config

BASE = "a base recipe: give it bits with --precision.forward"
BUILT_IN = ("digits",)  # datasets that need no files
BY_FORMAT = ("fp8", "mx", "nvfp4")  # quantizers that their formats imply


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A configuration, where it comes from and what to know about it.

    settings: of the configuration, plain data. cells: the tables, figures or papers that it belongs
    to. cycles: set for a base recipe, which trains in float32 until it is given bits; the number of
    cycles to use.
    """

    settings: Settings
    cells: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    notes: tuple[str, ...] = ()
    scale: Scale = "full"
    cycles: int | None = None

    def build(self) -> RunConfig:
        """The configuration, whose names are not yet looked up."""
        with unchecked_names():
            return build_config(self.settings)


@dataclass(frozen=True, kw_only=True)
class RecipeInfo:
    """What `bitcycle ls recipes` shows; `recipe(name)` returns the configuration."""

    name: str
    cells: tuple[str, ...]
    published: tuple[Published, ...]
    scale: Scale
    dataset: str
    model: str
    length: str
    bits: str
    notes: tuple[str, ...]
    cycles: int | None

    @property
    def needs_data(self) -> str | None:
        """The dataset whose files must be there (`--data.root`); None when it is built in."""
        return None if self.dataset in BUILT_IN else self.dataset

    @property
    def results(self) -> tuple[Published, ...]:
        """The published accuracies or perplexities, without costs and latencies."""
        return tuple(p for p in self.published if p.metric in ("accuracy", "perplexity"))


def recipe(name: str) -> RunConfig:
    """The complete configuration of that name; edit a copy with `dataclasses.replace`.

    >>> recipe("digits-statik-8-8")
    Traceback (most recent call last):
    ...
    ValueError: unknown recipe 'digits-statik-8-8'; did you mean 'digits-static-8-8'? ...
    """
    config = find_recipe(name).build()
    config.check_names()
    return config


def find_recipe(name: str) -> Recipe:
    """The recipe of that name, not yet built."""
    known = _by_name()
    if name not in known:
        raise unknown_name("recipe", name, known)
    return known[name]


def find_config(name: str) -> RunConfig:
    """The configuration of a recipe or of a YAML file."""
    path = Path(name).expanduser()
    if path.is_file():
        return read_config(path)
    if path.suffix in (".yaml", ".yml"):
        raise ValueError(f"there is no file {name}; give a YAML file or a recipe's name")
    if (path / "config.yaml").is_file():
        raise ValueError(f"{name} is a run; continue it with bitcycle resume")
    return recipe(name)


def recipe_names() -> list[str]:
    """The name of every recipe."""
    return sorted(_by_name())


def with_bits(base: str, text: str, *, cycles: int | None = None) -> RunConfig:
    """A base recipe with a method in the papers' notation; cycles: by default the recipe's.

    >>> config = with_bits("cifar100-resnet74", "CPT 4-8/8")
    >>> config.name, config.precision.forward, config.precision.backward
    ('cifar100-resnet74-cpt-4-8-8', 'CR:4-8:32', 8)
    """
    found = find_base(base)
    settings = settings_with_bits(found.config, text, cycles=cycles, usual_cycles=found.cycles)
    config = Recipe(settings=settings).build()
    config.check_names()
    return config


def settings_with_bits(
    settings: Settings, text: str, *, cycles: int | None = None, usual_cycles: int | None = None
) -> Settings:
    """The settings of a float32 run with a method in the papers' notation, and its name.

    cycles: in place of the usual number; it becomes part of the name.
    """
    notation = Notation.parse(text)
    if cycles is not None and not notation.is_cycled:
        raise ValueError(f"{text!r} has no cycles, got cycles {cycles}")
    if notation.is_cycled and cycles is None and usual_cycles is None:
        raise ValueError(f"{text!r} needs a number of cycles: give cycles, or a base recipe")
    if cycles is not None and cycles < 1:
        raise ValueError(f"cycles ({cycles}) must be at least 1")
    number = "" if cycles in (None, usual_cycles) else f"-n{cycles}"
    name = f"{settings.get('name', 'run')}-{notation.name}{number}"
    changed = notation.change(settings, cycles=usual_cycles if cycles is None else cycles)
    return {**changed, "name": name}


def list_recipes() -> list[RecipeInfo]:
    """Every recipe, sorted by name."""
    return [_info(name, entry) for name, entry in sorted(_by_name().items())]


def _info(name: str, entry: Recipe) -> RecipeInfo:
    config = entry.build()
    return RecipeInfo(
        name=name,
        cells=entry.cells,
        published=entry.published,
        scale=entry.scale,
        dataset=config.data.name,
        model=config.model.name,
        length=f"{config.steps:,} steps" if config.steps else f"{config.epochs:g} epochs",
        bits=bits_of(config),
        notes=(*([BASE] if entry.cycles else []), *entry.notes),
        cycles=entry.cycles,
    )


def find_recipes(words: Iterable[str]) -> list[RecipeInfo]:
    """The recipes that contain all words in their name, table, model or dataset.

    >>> [info.name for info in find_recipes(["table8", "static"])]
    ['cifar100-resnet74-static-6-6', 'cifar100-resnet74-static-6-8']
    """
    text = re.sub(r"\b(table|fig)(?:ure)?\.? *(?=\d)", r"\1", " ".join(words).lower())
    wanted = text.split()
    infos = list_recipes()
    texts = []
    for info in infos:
        cells = [re.sub(r"^CPT |[ .]", "", cell) for cell in info.cells]  # "table2", "fig5"
        texts.append(" ".join([info.name, info.model, info.dataset, *cells]).lower())
    for word in wanted:
        if not any(word in text for text in texts):
            known = {part for text in texts for part in re.split(r"[\s-]", text)}
            raise unknown_name("word", word, known)
    found = [
        i for i, text in zip(infos, texts, strict=True) if all(word in text for word in wanted)
    ]
    if not found:
        raise ValueError(f"no recipe contains {' and '.join(wanted)}")
    return found


def bits_of(config: RunConfig) -> str:
    """Forward and backward schedule in short, without options such as `window=8`.

    Layers with the same bits of their own in both passes, such as a head in bf16, are left out.

    >>> bits_of(recipe("digits-cpt-3-8-8")), bits_of(recipe("digits-dorefa-8-8"))
    ('CR:3-8:8 / 8', '8 / 8, dorefa')
    >>> bits_of(recipe("digits-per-layer-3-8-8")), bits_of(recipe("digits-plateau-3-8-8"))
    ('CR:3-8:8 (conv1 8) / 8', 'plateau:3-8 / 8')
    >>> bits_of(recipe("wikitext2-transformer-nvfp4-heal"))
    'stages:nvfp4@0.82,bf16 / nvfp4'
    >>> bits_of(recipe("wikitext2-transformer-nvfp4-heal-forward"))
    'stages:nvfp4@0.82,bf16 / nvfp4 (its operands too)'
    >>> bits_of(recipe("wikitext2-transformer-nvfp4-heal-both"))
    'stages:nvfp4@0.82,bf16 / same'
    """
    precision = config.precision
    if precision.is_float:
        return "float32"
    is_implied = precision.quantizer in ("sbm", *BY_FORMAT)
    quantizer = "" if is_implied else f", {precision.quantizer}"
    forward, backward = precision.forward, precision.schedule_texts().get("backward")
    if isinstance(forward, Mapping) and isinstance(backward, Mapping):
        layers = [{k: v for k, v in each.items() if k != "*"} for each in (forward, backward)]
        if layers[0] == layers[1]:
            forward, backward = forward.get("*"), backward.get("*")
    texts = _in_short(forward), _in_short(backward)
    is_schedule = ":" in texts[0]
    other = "same" if is_schedule and len(set(texts)) == 1 else texts[1]
    if precision.backward_operands == "backward":
        other = f"{other} (its operands too)"
    return f"{texts[0]} / {other}{quantizer}"


def _in_short(schedule: ScheduleText) -> str:
    if isinstance(schedule, Mapping):
        layers = [f"{name} {_in_short(text)}" for name, text in schedule.items() if name != "*"]
        return f"{_in_short(schedule.get('*'))} ({', '.join(layers)})"
    return re.sub(r":\w+=[^:)]+", "", "fp32" if schedule is None else str(schedule))


# -- every recipe ---------------------------------------------------------------------------------


@functools.cache
def _by_name() -> dict[str, Recipe]:
    found: dict[str, Recipe] = {}
    for name, entry in (*_of_files(), *_of_tables()):
        found[name] = _merge(name, found[name], entry) if name in found else entry
    return found


def _of_files() -> Iterator[tuple[str, Recipe]]:
    """The base recipes, their runs and their variants."""
    for base in read_bases().values():
        options: dict[str, Any] = {"scale": base.scale, "notes": base.notes}
        yield (
            base.name,
            Recipe(settings=base.config, cells=base.cells, cycles=base.cycles, **options),
        )
        for text in base.runs:
            settings = settings_with_bits(base.config, text, usual_cycles=base.cycles)
            settings["name"] += base.suffix
            yield settings["name"], Recipe(settings=settings, **options)
        for suffix, changes in base.variants.items():
            own = dict(changes)
            notes = (*base.notes, *own.pop("notes", ()))
            settings = base.config
            if "bits" in own:
                bits = own.pop("bits")
                settings = settings_with_bits(base.config, bits, usual_cycles=base.cycles)
            settings = {**change(settings, own), "name": f"{base.name}-{suffix}"}
            yield settings["name"], Recipe(settings=settings, scale=base.scale, notes=notes)


def _of_tables() -> Iterator[tuple[str, Recipe]]:
    """The cells of the published tables."""
    for where in TABLES:
        for cell in cells_of(where):
            yield (
                cell.name,
                Recipe(
                    settings={**cell.config, "name": cell.name},
                    cells=(where,),
                    published=cell.published,
                    notes=cell.notes,
                ),
            )


def _merge(name: str, first: Recipe, second: Recipe) -> Recipe:
    """One recipe that two tables contain."""
    if (first.settings, first.scale) != (second.settings, second.scale):
        raise ValueError(f"recipe {name!r} is defined twice, with other settings")
    return replace(
        first,
        cells=tuple(dict.fromkeys((*first.cells, *second.cells))),
        published=first.published + second.published,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )
