"""The public names, as one text that changes only on purpose.

After such a change `python -m tests.test_public_api` rewrites the text.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden" / "public_api.txt"
MODULES = (
    "bitcycle",
    "bitcycle.cost",
    "bitcycle.export",
    "bitcycle.formats",
    "bitcycle.integrations.lightning",
    "bitcycle.integrations.transformers",
    "bitcycle.memory",
    "bitcycle.quantizers",
    "bitcycle.schedules",
    "bitcycle_lab",
    "bitcycle_lab.export",
    "bitcycle_lab.landscape",
    "bitcycle_lab.report",
    "bitcycle_lab.study",
)
ONLY = {  # modules without a list of their own
    "bitcycle.integrations.lightning": ["PrecisionCallback"],
    "bitcycle.integrations.transformers": ["PrecisionCallback"],
    "bitcycle.memory": ["saved_bytes"],
    "bitcycle_lab.export": ["Check", "RunExport", "export_run"],
    "bitcycle_lab.report": ["plot"],
}


def public() -> Iterator[tuple[str, Any]]:
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in sorted(ONLY.get(module_name) or module.__all__):
            yield f"{module_name}.{name}", getattr(module, name)


def test_the_public_names_are_those_of_the_golden_file():
    assert [name for name, _ in public()] == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_every_public_name_has_a_docstring():
    for name, thing in public():
        assert inspect.getdoc(thing) or not callable(thing), f"{name} has no docstring"


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"{name}\n" for name, _ in public()), encoding="utf-8")
