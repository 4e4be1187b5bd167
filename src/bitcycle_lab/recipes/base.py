"""What a recipe is, how recipes are found by name, and how a base recipe gets its bits."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from bitcycle.registry import Registry, unknown_name
from bitcycle_lab.published import BitRange, Published
from bitcycle_lab.train.config import PrecisionConfig, RunConfig, ScheduleText, unchecked_names

Scale = Literal["full", "small"]

CPT_CYCLES = 32
FEW_CYCLES = 8  # of the follow-up, and of short runs
FOLLOW_UP = "follow-up"  # Better Schedules for Low Precision Training
BASE = "a base recipe: give it bits with --precision.forward"
BUILT_IN = ("digits",)  # datasets that need no files
ENDS = ("conv1", "fc")  # the first and the last layer of the residual nets
BY_FORMAT = ("fp8", "mx", "nvfp4")  # quantizers that their formats imply
KEEP_ENDS = ("dorefa", "wageubn")  # quantizers whose authors keep both in float32


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A configuration, where it comes from and what to know about it.

    cells: the tables, figures or papers that it belongs to. notes: what a user must know, such as a
    setting that no paper states. scale: "small" finishes in minutes on two cores. cycles: set for
    a base recipe, which trains in float32 until it is given bits; the number of cycles to use.
    """

    config: RunConfig
    cells: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    notes: tuple[str, ...] = ()
    scale: Scale = "full"
    cycles: int | None = None


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


FAMILIES: Registry[Callable[[], Iterable[Recipe]]] = Registry(
    "recipe family", "bitcycle_lab.recipes"
)


def recipe(name: str) -> RunConfig:
    """The complete configuration of that name; edit a copy with `dataclasses.replace`.

    >>> recipe("digits-statik-8-8")
    Traceback (most recent call last):
    ...
    ValueError: unknown recipe 'digits-statik-8-8'; did you mean 'digits-static-8-8'? ...
    """
    known = _by_name()
    if name not in known:
        raise unknown_name("recipe", name, known)
    config = copy.deepcopy(known[name].config)  # its options are dicts, which a caller could change
    config.check_names()
    return config


def list_recipes() -> list[RecipeInfo]:
    """Every recipe, sorted by name."""
    return [
        RecipeInfo(
            name=name,
            cells=entry.cells,
            published=entry.published,
            scale=entry.scale,
            dataset=entry.config.data.name,
            model=entry.config.model.name,
            length=length_of(entry.config),
            bits=bits_of(entry.config),
            notes=(*([BASE] if entry.cycles else []), *entry.notes),
            cycles=entry.cycles,
        )
        for name, entry in sorted(_by_name().items())
    ]


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
    return f"{texts[0]} / {'same' if is_schedule and len(set(texts)) == 1 else texts[1]}{quantizer}"


def _in_short(schedule: ScheduleText) -> str:
    if isinstance(schedule, Mapping):
        layers = [f"{name} {_in_short(text)}" for name, text in schedule.items() if name != "*"]
        return f"{_in_short(schedule.get('*'))} ({', '.join(layers)})"
    return re.sub(r":\w+=[^:)]+", "", "fp32" if schedule is None else str(schedule))


def length_of(config: RunConfig) -> str:
    """Steps or epochs."""
    return f"{config.steps:,} steps" if config.steps is not None else f"{config.epochs:g} epochs"


# -- a base recipe and its bits -------------------------------------------------------------------


def float32(skip: tuple[str, ...] = ()) -> PrecisionConfig:
    """The precision of a base recipe: float32, and what holds once it is given bits.

    skip: the layers that stay float32. The kernel is pinned, so that machines agree.
    """
    return PrecisionConfig(skip=skip, kernel="simulate")


def as_float32(config: RunConfig, suffix: str = "") -> RunConfig:
    """The base recipe as a run of its own, for comparisons: `<base>-float32`."""
    return replace(config, name=f"{config.name}-float32{suffix}", precision=PrecisionConfig())


def with_bits(
    config: RunConfig,
    method: str,
    cell: str,
    cycles: int = CPT_CYCLES,
    *,
    quantizer: str = "sbm",
    suffix: str = "",
) -> RunConfig:
    """A base recipe at a cell's bits; the method is "static", "cpt" or a name of `schedule_text`.

    >>> config = with_bits(recipe("cifar100-resnet74"), "cpt", "3-8/8")
    >>> config.name, config.precision.forward, config.precision.backward
    ('cifar100-resnet74-cpt-3-8-8', 'CR:3-8:32', 8)
    >>> with_bits(recipe("digits"), "static", "6/6", quantizer="sbm_full").name
    'digits-sbm-full-6-6'
    """
    bits = BitRange.parse(cell)
    words = [config.name, method.lower(), bits.name]
    precision = replace(
        config.precision,
        forward=schedule_text(method, bits, cycles),
        backward=bits.backward,
        quantizer=quantizer,
    )
    if quantizer != "sbm":
        words[1:2] = [quantizer.replace("_", "-"), *([] if method == "static" else [method])]
    if quantizer in KEEP_ENDS:
        precision = replace(precision, skip=ENDS)
    if quantizer == "wageubn":  # its gradients get coarser over the run
        precision = replace(precision, quantizer_options={"total_steps": config.steps})
    return replace(config, name=f"{'-'.join(words)}{suffix}", precision=precision)


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


# -- collecting -----------------------------------------------------------------------------------


def small(config: RunConfig, *cells: str, suffix: str = "") -> Iterator[Recipe]:
    """A small base recipe, its float32 run, and each cell: a range is CPT, one number is static."""
    yield Recipe(config=config, scale="small", cycles=FEW_CYCLES)
    yield Recipe(config=as_float32(config, suffix), scale="small")
    for cell in cells:
        method = "cpt" if "-" in cell else "static"
        run = with_bits(config, method, cell, FEW_CYCLES, suffix=suffix)
        yield Recipe(config=run, scale="small")


def _by_name() -> dict[str, Recipe]:
    return _collect(tuple(FAMILIES))


@lru_cache(maxsize=4)
def _collect(families: tuple[str, ...]) -> dict[str, Recipe]:
    found: dict[str, Recipe] = {}
    with unchecked_names():  # `recipe` checks the one that is used
        for family in families:
            for entry in FAMILIES[family]():
                name = entry.config.name
                found[name] = merge(found[name], entry) if name in found else entry
    return found


def merge(first: Recipe, second: Recipe) -> Recipe:
    """One recipe that two tables contain."""
    if (first.config, first.scale) != (second.config, second.scale):
        raise ValueError(f"recipe {first.config.name!r} is defined twice, with other settings")
    return replace(
        first,
        cells=tuple(dict.fromkeys((*first.cells, *second.cells))),
        published=first.published + second.published,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )
