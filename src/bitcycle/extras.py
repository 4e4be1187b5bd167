"""Optional dependencies: import them on use, or say how to install them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from types import ModuleType


class MissingExtraError(ImportError):
    """A feature needs a package that the core installation does not include."""


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a module, or raise an error that names its extra and what needs it.

    >>> require("no_such_package", extra="report", purpose="pictures")
    Traceback (most recent call last):
    ...
    bitcycle.extras.MissingExtraError: pictures need 'no_such_package', which is not installed: \
pip install ".[report]" in a checkout
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # the package exists but cannot import something else
        raise _missing(repr(module), extra, purpose) from None


def check_installed(modules: Iterable[str], *, extra: str, purpose: str) -> None:
    """Raise the error of `require` if one of these modules is missing. Imports none of them.

    >>> check_installed(["json", "no_such_package"], extra="train", purpose="runs")
    Traceback (most recent call last):
    ...
    bitcycle.extras.MissingExtraError: runs need 'no_such_package', which is not installed: \
pip install ".[train]" in a checkout
    """
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    if absent:
        raise _missing(", ".join(map(repr, absent)), extra, purpose)


def _missing(modules: str, extra: str, purpose: str) -> MissingExtraError:
    # in a checkout: no release is on a package index yet
    return MissingExtraError(
        f'{purpose} need {modules}, which is not installed: pip install ".[{extra}]" in a checkout'
    )
