"""What a recipe is, and how recipes are found by name."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from bitcycle.registry import Registry
from bitcycle.train.config import RunConfig, unchecked_names

Scale = Literal["full", "small"]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A number as a paper prints it.

    >>> print(Published(where="CPT Table 2", metric="accuracy", value=72.35, unit="%"))
    accuracy 72.35 % (CPT Table 2)
    """

    where: str
    metric: str  # accuracy, perplexity, cost or latency
    value: float
    unit: str  # %, nothing for a perplexity, GBitOPs, h

    def __str__(self) -> str:
        number = f"{self.value:.3g}" if self.metric == "cost" else f"{self.value:g}"
        return f"{self.metric} {number}{f' {self.unit}' if self.unit else ''} ({self.where})"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A configuration, where it comes from and what is said about it.

    cells: tables and figures that it is a cell of. notes: what a user must know, such as a setting
    that no paper states. scale: "small" finishes in minutes on two cores.
    """

    config: RunConfig
    cells: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    notes: tuple[str, ...] = ()
    scale: Scale = "full"


@dataclass(frozen=True, kw_only=True)
class RecipeInfo:
    """What `bitcycle ls recipes` shows; the configuration itself is `recipe(name)`."""

    name: str
    description: str
    cells: tuple[str, ...]
    published: tuple[Published, ...]
    scale: Scale
    dataset: str

    @property
    def needs_data(self) -> str | None:
        """The dataset whose files must be there (`--data.root`); None when it is built in."""
        from bitcycle.data import DATASETS

        return self.dataset if DATASETS[self.dataset].needs_root else None

    @property
    def results(self) -> tuple[Published, ...]:
        """The published accuracies or perplexities, without costs and latencies."""
        return tuple(p for p in self.published if p.metric in ("accuracy", "perplexity"))


FAMILIES: Registry[Callable[[], Iterable[Recipe]]] = Registry("recipe family", "bitcycle.recipes")


def recipe(name: str) -> RunConfig:
    """The complete configuration of that name; edit a copy with `dataclasses.replace`.

    >>> recipe("digits-statik-8-8")
    Traceback (most recent call last):
    ...
    ValueError: unknown recipe 'digits-statik-8-8'; nearest: digits-static-8-8, ... \
(all ...: bitcycle ls recipes)
    """
    known = _by_name()
    if name not in known:
        near = difflib.get_close_matches(str(name).lower(), known, n=4, cutoff=0.5)
        shown = f"; nearest: {', '.join(near)}" if near else ""
        raise ValueError(f"unknown recipe {name!r}{shown} (all {len(known)}: bitcycle ls recipes)")
    config = copy.deepcopy(known[name].config)  # its options are dicts, which a caller could change
    config.check_names()
    return config


def list_recipes() -> list[RecipeInfo]:
    """Every recipe, sorted by name."""
    return [
        RecipeInfo(
            name=name,
            description="; ".join([describe(entry.config), *entry.notes]),
            cells=entry.cells,
            published=entry.published,
            scale=entry.scale,
            dataset=entry.config.data.name,
        )
        for name, entry in sorted(_by_name().items())
    ]


def describe(config: RunConfig) -> str:
    """Model, data, bits and length in one line.

    >>> describe(recipe("digits-static-3-8"))
    'digits_resnet on digits, forward 3, backward 8, 240 steps'
    """
    precision = config.precision
    bits = f"forward {precision.forward}, backward {precision.backward}"
    length = f"{config.steps:,} steps" if config.steps is not None else f"{config.epochs:g} epochs"
    parts = [
        f"{config.model.name} on {config.data.name}",
        "float32" if precision.is_float else bits,
        length,
    ]
    if precision.quantizer != "sbm":
        parts.insert(1, precision.quantizer)
    return ", ".join(parts)


def _by_name() -> dict[str, Recipe]:
    return _collect(tuple(FAMILIES))


@lru_cache(maxsize=4)
def _collect(families: tuple[str, ...]) -> dict[str, Recipe]:
    found: dict[str, Recipe] = {}
    with unchecked_names():  # `recipe` checks the one that is used
        for family in families:
            for entry in FAMILIES[family]():
                name = entry.config.name
                found[name] = _merge(found[name], entry) if name in found else entry
    return found


def _merge(first: Recipe, second: Recipe) -> Recipe:
    if (first.config, first.scale) != (second.config, second.scale):
        raise ValueError(f"recipe {first.config.name!r} is defined twice, with other settings")
    return Recipe(
        config=first.config,
        cells=_union(first.cells, second.cells),
        published=first.published + second.published,
        notes=_union(first.notes, second.notes),
        scale=first.scale,
    )


def _union(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
