"""Optional dependencies: imported when needed, and named with the install command when missing."""

from __future__ import annotations

import importlib
from types import ModuleType


class MissingExtraError(ImportError):
    """A feature needs a package that the core installation does not bring."""


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or say which extra brings it and what it was needed for.

    >>> require("no_such_package", extra="report", purpose="pictures")
    Traceback (most recent call last):
    ...
    bitcycle.extras.MissingExtraError: pictures need 'no_such_package', which is not installed: \
pip install "bitcycle[report]"
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # the package is there, something inside it is broken: show that
        raise MissingExtraError(
            f'{purpose} need {module!r}, which is not installed: pip install "bitcycle[{extra}]"'
        ) from None
