"""Registries: find schedules, quantizers, kernels, layers, models, datasets or recipes by name.

A registry has one kind of object and the package that defines them. A new file in that package is
enough to add an object: the first lookup imports every module of the package, whose decorators
register. A name that is not among them is looked for in plugins: modules that installed packages
name as entry points of the group `bitcycle.plugins`.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from os.path import commonprefix
from typing import Generic, TypeVar

from bitcycle.warnings import BitcycleWarning

T = TypeVar("T")
F = TypeVar("F")

PLUGINS = "bitcycle.plugins"  # the group of entry points
NUM_SHOWN = 16  # names that an error lists
LIKENESS = 0.7  # of a name that may have been meant, from 0 to 1
LISTINGS = {  # kind -> the command that lists all its names
    "schedule": "bitcycle ls schedules",
    "format": "bitcycle ls formats",
    "quantizer": "bitcycle ls quantizers",
    "model": "bitcycle ls models",
    "dataset": "bitcycle ls datasets",
    "recipe": "bitcycle ls recipes",
    "model or recipe": "bitcycle ls models, bitcycle ls recipes",
    "study": "bitcycle study ls",
}


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for an unknown name: the likely one, then all names or the command that lists them.

    >>> unknown_name("schedule", "cosin", ["anneal", "cosine"])
    ValueError("unknown schedule 'cosin'; did you mean 'cosine'? known: anneal, cosine")
    """
    names = sorted(known)
    if len(names) <= NUM_SHOWN or kind not in LISTINGS:
        return ValueError(f"unknown {kind} {name!r}; {suggest(name, names)}")
    likely = closest(name, names)
    guess = f"; did you mean {likely!r}?" if likely else ""
    return ValueError(f"unknown {kind} {name!r}{guess} (all: {LISTINGS[kind]})")


def suggest(name: object, known: Sequence[str], title: str = "known") -> str:
    """The end of an error for a wrong name: the likely one, then the names.

    >>> suggest("layer2.con1", ["layer2.conv1", "fc"], "layers")
    "did you mean 'layer2.conv1'? layers: layer2.conv1, fc"
    """
    likely = closest(name, known)
    guess = f"did you mean {likely!r}? " if likely else ""
    return f"{guess}{title}: {list_some(known)}"


def closest(name: object, known: Iterable[str]) -> str | None:
    """The name that may have been meant: one that continues it, else the most alike.

    Of equally near names it is the one that begins alike.

    >>> closest("resnet21", ["resnet14", "resnet20"]), closest("--reset", ["--threads"])
    ('resnet20', None)
    >>> closest("cpt-3-8", ["cpt-3-6", "cpt-3-8-8", "cpt-3-8-8-swa"])
    'cpt-3-8-8'
    """
    lowered = str(name).lower()
    matcher = difflib.SequenceMatcher(b=lowered)  # which it analyses once for all candidates

    def likeness(candidate: str) -> tuple[float, int]:
        matcher.set_seq1(candidate.lower())
        return matcher.ratio(), len(commonprefix([candidate.lower(), lowered]))

    known = list(known)
    continuing = [each for each in known if each.lower().startswith(f"{lowered}-")]
    best = max(continuing or known, key=likeness, default=None)
    needed = LIKENESS if len(lowered) > 3 else 0.6  # two of three letters are enough
    return best if best is not None and likeness(best)[0] >= needed else None


def list_some(names: Sequence[str]) -> str:
    """The first names and the number of the others.

    >>> list_some("abc"), list_some([]), list_some("abcdefghijklmnopqr")
    ('a, b, c', '(none)', 'a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p and 2 more')
    """
    more = f" and {len(names) - NUM_SHOWN} more" if len(names) > NUM_SHOWN else ""
    return (", ".join(names[:NUM_SHOWN]) or "(none)") + more


_seen_groups: set[str] = set()


def load_plugins(group: str = PLUGINS) -> None:
    """Import the modules that installed packages name as entry points of this group, once.

    One that cannot be imported warns, and does not keep others from being used.
    """
    if group in _seen_groups:
        return
    _seen_groups.add(group)  # first: a plugin may look up names
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(
                f"the plugin {entry.name!r} ({entry.value}) cannot be imported: "
                f"{type(error).__name__}: {error}",
                BitcycleWarning,
                stacklevel=2,
            )


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
                raise ValueError(f"{self.kind} {name!r} is registered already")
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
            elif name not in self._entries:
                self._load_plugins()
        try:
            return self._entries[name]
        except (KeyError, TypeError):
            raise unknown_name(self.kind, name, self.names()) from None

    def _load_plugins(self) -> None:
        if self._package is not None:
            load_plugins()

    def __contains__(self, name: object) -> bool:
        self._load()
        if name not in self._entries and name not in self._elsewhere:
            self._load_plugins()
        return name in self._entries or name in self._elsewhere

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> list[str]:
        """Every name, sorted."""
        self._load()
        self._load_plugins()
        return sorted({*self._entries, *self._elsewhere})

    def items(self) -> list[tuple[str, T]]:
        """Every (name, object), sorted by name."""
        return [(name, self[name]) for name in self.names()]
