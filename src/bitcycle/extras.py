"""Optional dependencies: import them on use, or say how to install them."""

from __future__ import annotations

import importlib
from types import ModuleType


class MissingExtraError(ImportError):
    """A feature needs a package that the core installation does not include."""


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import a module, or raise an error that names its extra and what needs it.

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
            raise  # the package exists but cannot import something else
        raise MissingExtraError(
            f'{purpose} need {module!r}, which is not installed: pip install "bitcycle[{extra}]"'
        ) from None
