"""The commands that repeat a study, without anything of the machine they were run on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from bitcycle.data import DATASETS
from bitcycle.recipes import list_recipes
from bitcycle.study.adjust import StudyOptions
from bitcycle.study.base import STUDIES, Study

PLACES = {"data.root": "DATA", "data.cache_dir": "CACHE", "model.path": "MODEL"}


def study_commands(study: Study, options: StudyOptions) -> tuple[str, str]:
    """(what trains it, what writes its page): DATA, RUNS and the like stand for folders."""
    name = study.name if study.name in STUDIES.names() else f"{study.name}.yaml"
    words = [name, "--output", "RUNS"]
    if options.seeds is not None:
        words += ["--seeds", *map(str, options.seeds)]
    threads = {method.config.threads for method in study.methods}
    if len(threads) == 1 and None not in threads:
        words += ["--threads", str(threads.pop())]
    words += _overrides(study, options.overrides)
    run, publish = ["bitcycle", "study", "run"], ["bitcycle", "study", "publish"]
    return shlex.join([*run, *words]), shlex.join([*publish, *words, "--to", "results"])


def _overrides(study: Study, given: Sequence[str]) -> list[str]:
    """As they were given, with places for folders; the data's also where nobody gave it."""
    kept: list[str] = []
    words = iter(given)
    for word in words:
        key, has_value, value = word.partition("=")
        if not has_value:
            value = next(words, "")
        kept += [key, PLACES.get(key.removeprefix("--"), value)]
    if "--data.root" not in kept and needs_data(study):
        kept += ["--data.root", PLACES["data.root"]]
    return kept


def needs_data(study: Study) -> tuple[str, ...]:
    """The datasets whose files must be there, in the study's order."""
    names = dict.fromkeys(method.config.data.name for method in study.methods)
    return tuple(name for name in names if name in DATASETS and DATASETS[name].needs_root)


def recipe_needs_data(name: str) -> bool:
    """Whether a recipe reads files; a name that is no recipe's does not tell.

    >>> recipe_needs_data("digits-static-8-8"), recipe_needs_data("cora-gcn-static-8-8")
    (False, True)
    """
    return any(info.name == name and info.needs_data for info in list_recipes())
