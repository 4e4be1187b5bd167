"""A study: methods, seeds, and a baseline to compare the methods with.

A study holds configurations and no results; `bitcycle_lab.study.results` reads those. `study_file`
reads a study from YAML; `catalogue` has those that come with the package.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bitcycle.registry import suggest
from bitcycle_lab.published import Published
from bitcycle_lab.recipes.base import Scale
from bitcycle_lab.tasks.config import task_metric
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.config_file import check_overrides, option_names, override
from bitcycle_lab.train.config_id import IGNORED_SETTINGS, config_id
from bitcycle_lab.train.run_directory import RunDirectory

Kind = Literal["comparison", "suite", "critical-periods"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """One configuration, trained once per seed.

    label: its name, unique in its group. group: methods are compared within a group, such as
    "ResNet-74, CIFAR-100". place: (row, column) of the published table; None: (label, group).
    at: the number that a critical-periods study varies. num_seeds: train with only the first
    num_seeds of the study's seeds, such as a slow method once.
    """

    label: str
    config: RunConfig
    group: str = ""
    place: tuple[str, str] | None = None
    published: tuple[Published, ...] = ()
    at: float | None = None
    num_seeds: int | None = None

    @property
    def key(self) -> str:
        """Unique in the study."""
        return f"{self.group}: {self.label}" if self.group else self.label


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One training run. config: the method's, with the seed, output and name of the run."""

    method: Method
    config: RunConfig

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.config.seed


def run_directory(config: RunConfig) -> RunDirectory:
    """The folder that a run of a study is written to."""
    return RunDirectory(Path(config.output) / config.run_name)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Methods x seeds: how does each method differ from the baseline of its group?

    baseline: the label of the method that the others of a group are compared with. margin: the
    smallest difference that matters, in units of the metric; by default 1 point of accuracy, and
    1 % of the baseline's value for other metrics. notes: how the set-up differs from the published
    one, and what else a reader of the tables must know.
    """

    name: str
    description: str
    methods: tuple[Method, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    baseline: str | None = None
    kind: Kind = "comparison"
    scale: Scale = "full"
    notes: tuple[str, ...] = ()
    margin: float | None = None

    def __post_init__(self) -> None:
        if not self.name or any(c in self.name for c in "/\\\0\n") or self.name in (".", ".."):
            raise ValueError(f"the study's name ({self.name!r}) must be usable as a folder name")
        if not self.methods:
            raise ValueError(f"study {self.name!r} has no methods")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds {self.seeds} of study {self.name!r}: at least one, each once")
        if self.margin is not None and not (math.isfinite(self.margin) and self.margin > 0):
            raise ValueError(f"margin ({self.margin}) of study {self.name!r} must be more than 0")
        keys = [method.key for method in self.methods]
        for method in self.methods:
            if method.num_seeds is not None and method.num_seeds < 1:
                raise ValueError(
                    f"num_seeds ({method.num_seeds}) of method {method.label!r} of study "
                    f"{self.name!r} must be at least 1"
                )
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"study {self.name!r} has two methods of one name: {', '.join(twice)}")
        labels = {method.label for method in self.methods}
        if self.baseline is not None and self.baseline not in labels:
            raise ValueError(
                f"baseline {self.baseline!r} of study {self.name!r} is none of its methods; "
                f"{suggest(self.baseline, sorted(labels), 'methods')}"
            )
        for group in self.groups:
            tasks = {method.config.task for method in self.of(group)}
            if len(tasks) > 1:
                raise ValueError(
                    f"group {group!r} of study {self.name!r} mixes the tasks "
                    f"{', '.join(sorted(tasks))}"
                )

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups, in the order they first appear."""
        return tuple(dict.fromkeys(method.group for method in self.methods))

    def of(self, group: str) -> tuple[Method, ...]:
        """The methods of one group."""
        return tuple(method for method in self.methods if method.group == group)

    def metric(self, group: str) -> str:
        """The metric of the group's task, such as accuracy."""
        return task_metric(self.of(group)[0].config.task).name

    def higher_is_better(self, group: str) -> bool:
        """Whether a higher value of that metric is better."""
        return task_metric(self.of(group)[0].config.task).higher_is_better

    @property
    def num_runs(self) -> int:
        """Methods x seeds, less where a method has fewer seeds."""
        return sum(min(m.num_seeds or len(self.seeds), len(self.seeds)) for m in self.methods)

    def runs(self, output: str) -> Iterator[StudyRun]:
        """Every run, seed by seed, so that all methods have one result before any has two.

        The folder is `<output>/<name>-<id>-seed<seed>`. The id is a hash of the settings: studies
        that share a configuration share its runs, and a changed setting is a new run.
        """
        names = [f"{method.config.name}{_id_suffix(method.config)}" for method in self.methods]
        for number, seed in enumerate(self.seeds):
            for method, name in zip(self.methods, names, strict=True):
                if method.num_seeds is not None and number >= method.num_seeds:
                    continue
                config = replace(method.config, name=name, seed=seed, output=output)
                yield StudyRun(method=method, config=config)


def plain_name(config: RunConfig) -> str:
    """The name of a configuration without the id that a study adds to it.

    >>> from bitcycle_lab.study.study_file import find_study
    >>> run = next(find_study("demo").runs("runs"))
    >>> run.config.name == plain_name(run.config), plain_name(run.config)
    (False, 'digits-wide-float32')
    """
    return config.name.removesuffix(_id_suffix(config))


def _id_suffix(config: RunConfig) -> str:
    return f"-{config_id(config)}"


# -- options of a command line --------------------------------------------------------------------

_SET_BY_STUDY = {
    "name": "the study names its runs",
    "seed": "give --seeds 0 1 2",
    "output": "give it before the overrides",
}


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Options of `bitcycle study run`, which change all methods of a study.

    overrides: `--key value` words. threads: of every run. default_threads: of the runs whose
    configuration leaves the number open; it then becomes part of the configuration.
    """

    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    threads: int | None = None
    default_threads: int | None = None

    def __post_init__(self) -> None:
        for word in self.overrides:
            key = word[2:].partition("=")[0] if word.startswith("--") else ""
            if key in _SET_BY_STUDY:
                raise ValueError(f"--{key} cannot override a study: {_SET_BY_STUDY[key]}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"--threads ({self.threads}) must be at least 1")


def adjust(study: Study, options: StudyOptions) -> Study:
    """A copy of the study with these options applied.

    >>> from bitcycle_lab.study.study_file import find_study
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
    notes = (*study.notes, *_change_note(options.overrides))
    return replace(study, methods=methods, seeds=seeds, notes=notes)


def _change_note(overrides: Sequence[str]) -> Iterator[str]:
    """The overrides that change results, which the study's own description does not know.

    >>> list(_change_note(["--steps", "60", "--data.root", "x", "--lr.milestones", "0.5", "0.7"]))
    ['changed for every method: --steps 60 --lr.milestones 0.5 0.7']
    """
    words, is_shown = [], False
    for word in overrides:
        if word.startswith("--"):
            key = word[2:].partition("=")[0]
            ignored = ("threads", *IGNORED_SETTINGS)
            is_shown = not any(key == name or key.startswith(f"{name}.") for name in ignored)
        words += [word] * is_shown
    if words:
        yield f"changed for every method: {shlex.join(words)}"


def override_all(configs: Sequence[RunConfig], arguments: Sequence[str]) -> list[RunConfig]:
    """`override` every configuration; the words are parsed once where that gives the same."""
    if not arguments:
        return list(configs)
    check_overrides(arguments)
    keys = [word[2:].partition("=")[0] for word in arguments if word.startswith("--")]
    if not set(keys) <= set(option_names()):  # such as --model.options.width, --lr.milestones+
        return [override(config, arguments) for config in configs]
    first = override(configs[0], arguments)
    return [first, *(_copy_settings(config, first, keys) for config in configs[1:])]


def _copy_settings(config: RunConfig, source: RunConfig, keys: Sequence[str]) -> RunConfig:
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
