"""Schedules, quantizers, models and datasets of your own: the option `--import my_things.py`.

Importing executes code. It is done for files that the command line names, and for those only: no
configuration, no study file and no folder of a run can name one. Installed packages have the entry
points of `bitcycle.registry` instead.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

_imported: dict[str, None] = {}  # what `import_plugin` was given: absolute paths and module names


def import_plugin(what: str) -> None:
    """Import a Python file, or a module by its dotted name, once.

    The module of a file has the name of the file, and finds modules beside it.
    """
    is_file = what.endswith(".py")
    if is_file:
        path = Path(what).expanduser().resolve()
        if not path.is_file():
            raise ValueError(f"--import {what}: there is no such file")
        if not path.stem.isidentifier():
            raise ValueError(f"--import {what}: {path.stem!r} is no name of a module; rename it")
        what = str(path)
    if what in _imported:
        return
    try:
        if is_file:
            _import_file(path)
        else:
            importlib.import_module(what)
    except Exception as error:  # whatever its code raises
        raise ValueError(f"--import {what} failed: {type(error).__name__}: {error}") from error
    _imported[what] = None


def import_plugins(plugins: Iterable[str]) -> None:
    """`import_plugin` for each, as in the worker of a study."""
    for each in plugins:
        import_plugin(each)


def imported_plugins() -> tuple[str, ...]:
    """What this process imported, for its workers to import and for a run's env.json."""
    return tuple(_imported)


def _import_file(path: Path) -> None:
    name = path.stem
    other = importlib.util.find_spec(name)  # also one that is not imported yet, such as json
    if other is not None and (other.origin is None or Path(other.origin).resolve() != path):
        raise ImportError(f"there is a module {name!r} already; rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module  # before its code runs: dataclasses look there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
