"""Registries: find schedules, quantizers, kernels, layers, models, datasets or recipes by name.

A registry has one kind of object and the package that defines them. A new file in that package is
enough to add an object: the first lookup imports every module of the package, whose decorators
register.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
F = TypeVar("F")


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for an unknown name, with the known names and the nearest one.

    >>> unknown_name("schedule", "cosin", ["anneal", "cosine"])
    ValueError("unknown schedule 'cosin'; known: anneal, cosine; did you mean 'cosine'?")
    """
    names = sorted(known)
    message = f"unknown {kind} {name!r}; known: {', '.join(names) or '(none)'}"
    lowered = {n.lower(): n for n in names}
    near = difflib.get_close_matches(str(name).lower(), lowered, n=1)
    if near:
        message += f"; did you mean {lowered[near[0]]!r}?"
    return ValueError(message)


class Registry(Generic[T]):
    """Maps names to objects of one kind; imports the package that defines them on first use.

    elsewhere: names and the modules outside the package that define them, each imported when its
    name is looked up.

    >>> colours = Registry[str]("colour")
    >>> _ = colours.register("red")("#f00")
    >>> colours["red"], colours.names()
    ('#f00', ['red'])
    """

    def __init__(
        self, kind: str, package: str | None = None, elsewhere: Mapping[str, str] | None = None
    ) -> None:
        self.kind = kind
        self._package = package
        self._elsewhere = dict(elsewhere or {})
        self._entries: dict[str, T] = {}
        self._is_loaded = package is None

    def register(self, name: str) -> Callable[[F], F]:
        """A decorator that registers the object under a name that is not taken."""

        def add(item: F) -> F:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered already; choose another name")
            self._entries[name] = item  # type: ignore[assignment]
            return item

        return add

    def _load(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        assert self._package is not None
        try:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
        except BaseException:
            self._is_loaded = False  # the next lookup raises the same error
            raise

    def __getitem__(self, name: str) -> T:
        if isinstance(name, str) and name not in self._entries:
            self._load()
            if name in self._elsewhere:
                importlib.import_module(self._elsewhere[name])
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            raise unknown_name(self.kind, name, self.names()) from None

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries or name in self._elsewhere

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> list[str]:
        """Every name, sorted."""
        self._load()
        return sorted({*self._entries, *self._elsewhere})

    def is_imported(self, name: str) -> bool:
        """Whether the object's module is imported; False for `elsewhere` before a lookup."""
        self._load()
        return name in self._entries

    def items(self) -> list[tuple[str, T]]:
        """Every (name, object), sorted by name."""
        return [(name, self[name]) for name in self.names()]
