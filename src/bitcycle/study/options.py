"""The options a study was last run with, kept beside its files: `status` looks for those runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from bitcycle.study.adjust import StudyOptions, adjust
from bitcycle.study.base import Study
from bitcycle.study.find import find_study
from bitcycle.study.results import study_folder
from bitcycle.train.files import write_json


def options_file(output: str | Path, name: str) -> Path:
    """Where they are kept."""
    return study_folder(output, name) / "options.json"


def write_options(output: str | Path, name: str, options: StudyOptions) -> None:
    """Remember what a study is run with."""
    path = options_file(output, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(options))


def read_options(output: str | Path, name: str) -> StudyOptions | None:
    """What the study was last run with below `output`; None when it was not."""
    path = options_file(output, name)
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        seeds = stored.pop("seeds")
        return StudyOptions(
            **{**stored, "overrides": tuple(stored["overrides"])},
            seeds=None if seeds is None else tuple(seeds),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it and give the study's options again"
        ) from None


def open_study(name_or_path: str, output: str | Path, options: StudyOptions | None = None) -> Study:
    """A study as it was last run below `output`, or with these options in place of its own.

    Threads that nobody chose stay those it was begun with: its runs are then found again,
    whatever the number of jobs would suggest today.
    """
    study = find_study(name_or_path)
    stored = read_options(output, study.name) or StudyOptions()
    if options is None or options == StudyOptions():
        return adjust(study, stored)
    if options.default_threads is None:
        options = replace(options, default_threads=stored.default_threads)
    return adjust(study, options)


def choose_options(
    name: str,
    output: str | Path,
    options: StudyOptions,
    *,
    num_jobs: int | None,
    engine: str = "local",
) -> StudyOptions:
    """The options of the study `name` with a number of threads for runs that leave it open.

    Those the study was begun with; otherwise the processors of this machine divided by the jobs,
    and one on a cluster, whose machines may differ.
    """
    stored = read_options(output, name)
    if stored is not None and stored.default_threads is not None:
        return replace(options, default_threads=stored.default_threads)
    cores = len(os.sched_getaffinity(0)) if engine == "local" else 1
    return replace(options, default_threads=max(1, cores // (num_jobs or 1)))
