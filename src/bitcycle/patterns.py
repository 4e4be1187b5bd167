"""Patterns that select modules of a model by name, glob or type.

A name selects that module and everything below it. A glob ("*.conv?") matches full dotted paths. A
type selects its instances and everything below them. Wrappers (DDP, DataParallel, torch.compile)
add nothing to a name.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from torch import nn

from bitcycle.registry import suggest
from bitcycle.tables import THE_MODEL

V = TypeVar("V")
Pattern = str | type[nn.Module]
_WRAPPERS = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "module",
    "torch.nn.parallel.data_parallel.DataParallel": "module",
    "torch._dynamo.eval_frame.OptimizedModule": "_orig_mod",
    "torch.optim.swa_utils.AveragedModel": "module",
}


def _wrapped_child(module: nn.Module) -> str | None:
    for base in type(module).__mro__:
        child = _WRAPPERS.get(f"{base.__module__}.{base.__qualname__}")
        if child is not None:
            return child
    return None


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DDP, DataParallel and torch.compile, however deep."""
    while (child := _wrapped_child(model)) is not None:
        model = getattr(model, child)
    return model


@dataclass
class NamedModule:
    """A module with all of its names and the modules that contain it."""

    module: nn.Module
    names: list[str] = field(default_factory=list)
    parents: list[nn.Module] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The first name; a shared module has several."""
        return self.names[0]


def named_modules(model: nn.Module) -> list[NamedModule]:
    """Every module once, in order, with all of its names; wrappers add nothing.

    >>> [entry.name for entry in named_modules(nn.Sequential(nn.Linear(1, 1)))]
    ['', '0']
    """
    found: dict[int, NamedModule] = {}
    for name, module, parents in _walk(model, "", []):
        entry = found.setdefault(id(module), NamedModule(module))
        if name not in entry.names:
            entry.names.append(name)
        entry.parents += [p for p in parents if not any(p is known for known in entry.parents)]
    return list(found.values())


def _walk(
    module: nn.Module, name: str, parents: list[nn.Module]
) -> Iterator[tuple[str, nn.Module, list[nn.Module]]]:
    yield name, module, parents
    hidden = _wrapped_child(module)
    for child_name, child in module._modules.items():  # named_children() hides second names
        if child is not None:
            path = name if child_name == hidden else f"{name}.{child_name}" if name else child_name
            yield from _walk(child, path, [*parents, module])


def matches(pattern: Pattern, entry: NamedModule) -> bool:
    """Whether the pattern selects the module, by itself or through a module around it."""
    if isinstance(pattern, type):
        return isinstance(entry.module, pattern) or any(
            isinstance(parent, pattern) for parent in entry.parents
        )
    if any(name == pattern or name.startswith(f"{pattern}.") for name in entry.names):
        return True
    is_glob = any(character in pattern for character in "*?[")
    return is_glob and any(fnmatch.fnmatchcase(name, pattern) for name in entry.names)


def is_named_by(pattern: Pattern, entry: NamedModule) -> bool:
    """Whether the pattern selects the module by itself, not through a module around it.

    >>> entry = NamedModule(nn.Linear(1, 1), ["net.fc"])
    >>> [is_named_by(pattern, entry) for pattern in ("net.fc", "*.fc", nn.Linear, "net")]
    [True, True, True, False]
    """
    if isinstance(pattern, type):
        return isinstance(entry.module, pattern)
    return any(pattern == name or fnmatch.fnmatchcase(name, pattern) for name in entry.names)


def check_patterns(
    patterns: Iterable[Pattern],
    entries: Iterable[NamedModule],
    what: str,
    also: Iterable[NamedModule] = (),
) -> tuple[Pattern, ...]:
    """The patterns as a tuple; a ValueError for one that matches no module.

    also: further modules that a pattern may match; the error does not list them.
    """
    if isinstance(patterns, str | type):
        raise ValueError(f"{what} takes a list of patterns, got {patterns!r}")
    patterns, entries, also = tuple(patterns), list(entries), list(also)
    for pattern in patterns:
        if not isinstance(pattern, str | type):
            raise ValueError(
                f"{what}: a pattern is a name, a glob or a module type, got {pattern!r}"
            )
        if not any(matches(pattern, entry) for entry in (*entries, *also)):
            shown = pattern if isinstance(pattern, str) else pattern.__name__
            names = [entry.name or THE_MODEL for entry in entries]
            raise ValueError(
                f"{what}: pattern {shown!r} matches no layer; {suggest(shown, names, 'layers')}"
            )
    return patterns


def last_match(patterns: Mapping[Pattern, V], entry: NamedModule) -> V | None:
    """The value of the last pattern that selects the module; None if none does."""
    hits = [value for pattern, value in patterns.items() if matches(pattern, entry)]
    return hits[-1] if hits else None


def check_mapping(patterns: Mapping[Pattern, V], entries: Iterable[NamedModule], what: str) -> None:
    """Raise a ValueError for a pattern that matches nothing or that later patterns override."""
    entries = list(entries)
    check_patterns(patterns, entries, what)
    order = list(patterns)
    winners = {
        max(i for i, pattern in enumerate(order) if matches(pattern, entry))
        for entry in entries
        if any(matches(pattern, entry) for pattern in order)
    }
    for i, pattern in enumerate(order):
        if i not in winners:
            raise ValueError(
                f"{what}: pattern {pattern!r} has no effect, later patterns cover all its layers"
            )


def list_names(entries: Iterable[NamedModule], limit: int = 40) -> str:
    """The names for a message, at most `limit` of them."""
    names = [entry.name or THE_MODEL for entry in entries]
    more = f", ... and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more if names else "(none)"
