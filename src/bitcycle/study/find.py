"""A study by its name or by its file."""

from __future__ import annotations

from pathlib import Path

from bitcycle.study.base import STUDIES, Study
from bitcycle.study.file import read_study_file


def find_study(name_or_path: str) -> Study:
    """One that comes with the package, or the one in a YAML file.

    >>> find_study("demmo")
    Traceback (most recent call last):
    ...
    ValueError: unknown study 'demmo'; known: ...; did you mean 'demo'?
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return read_study_file(path)
    if path.suffix in (".yaml", ".yml"):
        raise ValueError(f"there is no file {name_or_path}; give a YAML file or a study's name")
    return STUDIES[name_or_path]()
