"""The published cell that a method stands for, also where ours is a small twin of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bitcycle.recipes.small_twins import PREFIX
from bitcycle.study.base import STUDIES, Method, Study
from bitcycle.study.publish.cycles import num_cycles
from bitcycle.study.published import published_cost, published_value
from bitcycle.study.shipped.parts import group, label
from bitcycle.train.config import RunConfig

REFERENCE = "table2"  # for small studies that are no twin of one table


def counterparts(study: Study) -> dict[str, dict[str, Any]]:
    """Key of a method -> its published value, cost, where it stands and how it was trained."""
    found: dict[str, dict[str, Any]] = {}
    for method, cell in _cells(study):
        metric = study.metric(method.group)
        value = published_value(cell, metric)
        if value is None:
            continue
        found[method.key] = {
            "value": value,
            "cost": published_cost(cell),
            "where": next(p.where for p in cell.published if p.metric == metric),
            "group": group(cell.config),
            "training": training(cell.config),
        }
    return found


def cycles_apart(study: Study) -> list[tuple[int, int]]:
    """(ours, published) numbers of cycles, where they differ; each once."""
    pairs = [(num_cycles(ours.config), num_cycles(cell.config)) for ours, cell in _cells(study)]
    return list(dict.fromkeys((a, b) for a, b in pairs if a and b and a != b))


def _cells(study: Study) -> Iterator[tuple[Method, Method]]:
    """Each method with the one that a paper has a value for, which may be itself."""
    full = STUDIES[_twin(study.name)]() if study.scale == "small" else study
    for method in study.methods:
        metric = study.metric(method.group)
        cell = method if study.scale == "full" else _cell(method, full.methods, metric)
        if cell is not None:
            yield method, cell


def _twin(name: str) -> str:
    full = name.removesuffix("-small")
    return full if full in STUDIES.names() and full != name else REFERENCE


def _cell(small: Method, cells: Sequence[Method], metric: str) -> Method | None:
    """That of the same name on CPT's network; else that of the same bits on the nearest set-up."""
    told = [cell for cell in cells
            if published_value(cell, metric) is not None
            and cell.config.task == small.config.task]  # fmt: skip
    twin = PREFIX + small.config.name.removeprefix("digits-")
    same = [cell for cell in told if cell.config.name == twin]
    alike = same or [cell for cell in told if label(cell.config) == label(small.config)]
    return max(alike, key=lambda cell: _nearness(cell.config, small.config), default=None)


def _nearness(cell: RunConfig, ours: RunConfig) -> int:
    return (
        4 * (cell.data.name == ours.data.name)
        + 2 * (cell.model.name == ours.model.name)
        + cell.name.startswith((PREFIX, PREFIX.replace("100", "10")))
    )


def training(config: RunConfig) -> str:
    """Length, batch and how much data.

    >>> from bitcycle.recipes import recipe
    >>> training(recipe("cifar100-resnet74-static-8-8")), training(recipe("cora-gcn-static-8-8"))
    ('64,000 steps of 128', '200 steps of the whole graph')
    """
    length = f"{config.steps:,} steps" if config.steps is not None else f"{config.epochs:g} epochs"
    if config.task == "nodes":
        return f"{length} of the whole graph"
    size = config.data.batch_size * config.accumulate
    subset = config.data.subset
    share = f"{subset:,}" if isinstance(subset, int) else f"{100 * (subset or 1):g} % of the"
    return f"{length} of {size}" + (f" on {share} training samples" if subset else "")
