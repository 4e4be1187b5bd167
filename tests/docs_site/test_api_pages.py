"""Every public name has its place in the reference, and nothing else has one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.test_public_api import GOLDEN, MODULES, public

PAGES = Path(__file__).parents[2] / "docs" / "api"
# not exported; their methods are those of public classes
BASES = {
    "bitcycle.bits.Bits",
    "bitcycle.quantizers.blocks.BlockQuantizer",
    "bitcycle.schedules.base.Ranged",
    "bitcycle.schedules.cycle.Cyclic",
}


def names() -> list[tuple[str, str]]:
    """(module, name) of what is public, without modules."""
    found = []
    for path in GOLDEN.read_text(encoding="utf-8").split():
        if path not in MODULES:
            module = max((m for m in MODULES if path.startswith(f"{m}.")), key=len)
            found.append((module, path.removeprefix(f"{module}.")))
    return found


def entries() -> list[str]:
    """What the pages document."""
    texts = [page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md"))]
    return re.findall(r"^::: (\S+)$", "\n".join(texts), re.M)


def is_entry_of(path: str, module: str, name: str) -> bool:
    """An entry may lie deeper: bitcycle.Cycle is bitcycle.schedules.Cycle."""
    return path.startswith(f"{module}.") and path.endswith(f".{name}")


def test_every_public_name_is_documented():
    missing = [f"{m}.{n}" for m, n in names() if not any(is_entry_of(e, m, n) for e in entries())]
    assert not missing, f"add to a page of docs/api: {missing}"


def test_nothing_else_is_and_nothing_twice():
    others = {e for e in entries() if not any(is_entry_of(e, m, n) for m, n in names())}
    assert others == BASES
    assert len(entries()) == len(set(entries()))


def test_a_function_with_the_name_of_its_file_is_documented_by_its_full_path():
    """A shorter path would document everything in the file."""
    homes = {f"{thing.__module__}.{name.split('.')[-1]}" for name, thing in public()
             if name.split(".")[-1] == getattr(thing, "__module__", "").split(".")[-1]}  # fmt: skip
    assert "bitcycle.audit.audit" in homes
    assert homes <= set(entries())
