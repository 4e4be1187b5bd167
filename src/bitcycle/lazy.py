"""Lazy packages: names are imported on first use, so that `import bitcycle` is fast.

A package lists its names once, in its stub `__init__.pyi`, which type checkers and editors read
too. `lazy_package(__name__)` in its `__init__.py` exports them (SPEC 1 of Scientific Python).
"""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.resources import files
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package that imports an exported name on first use."""

    _homes: dict[str, tuple[str, str | None]]  # name -> (module, attribute; None: the module)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in self._homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        home, attribute = self._homes.get(name, (f"{self.__name__}.{name}", None))
        try:
            module = importlib.import_module(home)  # a name of the stub, or any submodule
        except ModuleNotFoundError as error:
            if error.name != home:
                raise  # the module exists, but something it imports does not
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None
        value = module if attribute is None else getattr(module, attribute)
        vars(self)[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # the import system sets a submodule as an attribute of its package; where a function has
        # the name of its file (bitcycle.audit), the package exports the function
        home, attribute = self._homes.get(name, (None, None))
        if isinstance(value, ModuleType) and attribute is not None and value.__name__ == home:
            value = getattr(value, attribute)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(self._homes)  # what the stub exports: submodules are found without a list

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)  # for cloudpickle, which Ray uses


def lazy_package(package: str) -> list[str]:
    """Export the names of a package's stub on first use; returns them for `__all__`."""
    module = sys.modules[package]
    stub = ast.parse(files(package).joinpath("__init__.pyi").read_text(encoding="utf-8"))
    homes: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(stub):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                is_submodule = node.module == package
                home = f"{package}.{alias.name}" if is_submodule else node.module
                homes[alias.asname or alias.name] = (home, None if is_submodule else alias.name)
    vars(module)["_homes"] = homes
    module.__class__ = LazyPackage
    return sorted(homes)
