"""What a recipe is, and how recipes are found by name."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from bitcycle.published import BitRange, Published
from bitcycle.registry import Registry
from bitcycle.schedules.cycle import Cycle
from bitcycle.train.config import PrecisionConfig, RunConfig, unchecked_names

Scale = Literal["full", "small"]


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


TEN = tuple(sorted(Cycle.named()))  # LR, CR, ..., RT-V
CPT_CYCLES = 32
ENDS = ("conv1", "fc")  # the first and the last layer of the residual nets
SKIPPED = {  # by quantizer: the layers that stay float32; the last one always does
    "absmax": ("fc",),
    "dorefa": ENDS,
    "pow2": ("fc",),
    "sbm": ("fc",),
    "sbm_full": ("fc",),
    "wageubn": ENDS,
}
FEW_CYCLES = 8  # the follow-up's number, and that of short runs


def schedule_text(method: str, bits: BitRange, cycles: int = CPT_CYCLES) -> int | str:
    """The forward schedule of a method; a range of one number is static.

    >>> schedule_text("cpt", BitRange(3, 8, 8)), schedule_text("static", BitRange(6, 6, 8))
    ('CR:3-8:32', 6)
    >>> schedule_text("progressive", BitRange(3, 8, 8)), schedule_text("ET-H", BitRange(3, 8, 8), 8)
    ('ramp:3-8@0.5', 'ET-H:3-8:8')
    """
    if bits.low == bits.high:
        return bits.high
    if method == "progressive":
        return f"ramp:{bits.low}-{bits.high}@0.5"
    name = "CR" if method == "cpt" else method
    return f"{name}:{bits.low}-{bits.high}:{cycles}"


def quantized(
    forward: int | str, backward: int | str, *, skip: tuple[str, ...] = (), quantizer: str = "sbm"
) -> PrecisionConfig:
    """BitRange for every layer but `skip`; the kernel is pinned, so that machines agree."""
    return PrecisionConfig(
        quantizer=quantizer, skip=skip, kernel="simulate", forward=forward, backward=backward
    )
