"""The public names and what they take, as one text that changes only on purpose.

After such a change: `python -m tests.test_public_api` writes the text anew; the difference belongs
in the changelog, and CONTRIBUTING.md says how long an old way must go on working.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

GOLDEN = Path(__file__).parent / "golden" / "public_api.txt"
MODULES = (
    "bitcycle",
    "bitcycle.cost",
    "bitcycle.export",
    "bitcycle.formats",
    "bitcycle.integrations.lightning",
    "bitcycle.integrations.transformers",
    "bitcycle.landscape",
    "bitcycle.memory",
    "bitcycle.quantizers",
    "bitcycle.report",
    "bitcycle.schedules",
    "bitcycle.study",
)
ONLY = {  # modules without a list of their own
    "bitcycle.integrations.lightning": ["PrecisionCallback"],
    "bitcycle.integrations.transformers": ["PrecisionCallback"],
    "bitcycle.memory": ["saved_bytes"],
    "bitcycle.report": ["plot"],
}


def test_it_is_what_it_was():
    assert describe().splitlines() == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_every_public_name_says_what_it_is():
    for name, thing in public():
        assert inspect.getdoc(thing) or not callable(thing), f"{name} has no docstring"


def describe() -> str:
    """A line per name, and per public method of a class."""
    return "\n".join(line for name, thing in public() for line in lines_of(name, thing)) + "\n"


def public() -> Iterator[tuple[str, Any]]:
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in sorted(ONLY.get(module_name) or module.__all__):
            yield f"{module_name}.{name}", getattr(module, name)


def lines_of(name: str, thing: Any) -> Iterator[str]:
    if isinstance(thing, ModuleType):
        yield f"{name} (module)"
    elif inspect.isclass(thing):
        yield f"{name}{parameters(thing)}"
        if not issubclass(thing, enum.Enum | Exception):
            yield from members(name, thing)
    elif callable(thing):
        yield f"{name}{parameters(thing)}"
    else:
        yield f"{name}: {type(thing).__name__}"


def members(name: str, kind: type) -> Iterator[str]:
    """What bitcycle's own classes of its inheritance define."""
    found = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("bitcycle"):
            found |= {n: v for n, v in vars(base).items() if not n.startswith("_")}
    for member, value in sorted(found.items()):
        if isinstance(value, property):
            yield f"{name}.{member} (property)"
        elif isinstance(value, staticmethod | classmethod):
            yield f"{name}.{member}{parameters(value.__func__)}"
        elif inspect.isfunction(value):
            yield f"{name}.{member}{parameters(value)}"


def parameters(thing: Any) -> str:
    """Names, kinds and defaults, without types."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=signature.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", text)  # of a function that is a default


if __name__ == "__main__":
    GOLDEN.write_text(describe(), encoding="utf-8")
