"""A study with other settings: overrides for every method, other seeds, threads filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bitcycle.study.base import Study
from bitcycle.train.config import RunConfig
from bitcycle.train.configfile import check_overrides, option_names, override

_SET_BY_STUDY = {
    "name": "the study names its runs",
    "seed": "give --seeds 0 1 2",
    "output": "give it before the overrides",
}


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """What a command line says about a study.

    overrides: `--key value` words for every method. threads: of every run. default_threads: of
    runs whose configuration leaves them open; they are then part of it.
    """

    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    threads: int | None = None
    default_threads: int | None = None

    def __post_init__(self) -> None:
        for word in self.overrides:
            key = word[2:].partition("=")[0] if word.startswith("--") else ""
            if key in _SET_BY_STUDY:
                raise ValueError(f"--{key} is no override of a study: {_SET_BY_STUDY[key]}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"--threads ({self.threads}) must be at least 1")


def adjust(study: Study, options: StudyOptions) -> Study:
    """The study as these options want it.

    >>> from bitcycle.study.find import find_study
    >>> study = adjust(find_study("demo"), StudyOptions(overrides=("--steps", "9"), seeds=(4,)))
    >>> study.seeds, {method.config.steps for method in study.methods}
    ((4,), {9})
    """
    configs = override_all([method.config for method in study.methods], options.overrides)
    if options.threads is not None:
        configs = [replace(config, threads=options.threads) for config in configs]
    if options.default_threads is not None:
        threads = options.default_threads
        configs = [c if c.threads is not None else replace(c, threads=threads) for c in configs]
    methods = tuple(
        replace(method, config=config)
        for method, config in zip(study.methods, configs, strict=True)
    )
    seeds = study.seeds if options.seeds is None else options.seeds
    return replace(study, methods=methods, seeds=seeds)


def override_all(configs: Sequence[RunConfig], arguments: Sequence[str]) -> list[RunConfig]:
    """`override` of each, with the words read once where that gives the same."""
    if not arguments:
        return list(configs)
    check_overrides(arguments)
    keys = [word[2:].partition("=")[0] for word in arguments if word.startswith("--")]
    if not set(keys) <= set(option_names()):  # such as --model.options.width, --lr.milestones+
        return [override(config, arguments) for config in configs]
    first = override(configs[0], arguments)
    return [first, *(_take(config, first, keys) for config in configs[1:])]


def _take(config: RunConfig, source: RunConfig, keys: Sequence[str]) -> RunConfig:
    """`config` with the values that `source` has under these dotted keys."""
    changes: dict[str, Any] = {}
    for key in keys:
        part, _, name = key.partition(".")
        value = getattr(source, part)
        if name:
            value = replace(
                changes.get(part, getattr(config, part)), **{name: getattr(value, name)}
            )
        changes[part] = value
    return replace(config, **changes)
