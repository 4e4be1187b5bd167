"""Every document is run: `python` blocks are executed, `$ bitcycle` lines of `console` blocks too.

The blocks of one file share a namespace and run in order, in a process of their own: what a walk
registers must not reach other tests. A block right after `<!-- not executed: reason -->` is left
out. Output shown below a command, or in a `text` block right after a `python` block, must appear in
the real output, in order; a line `...` stands for anything. After `<!-- numbers depend on the
processor -->` only the words that begin a line are compared. Documents with a command that takes
long are run by `make test-all`. A `python` block that begins with a comment such as
`# my_things.py` is a file of that name for the commands.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.forking import run_command, run_script

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXECUTED = ("python", "console")
SHOWN = ("", "text", "diff", "yaml", "json", "toml", "make", "bibtex")
LONG_IMPORTS = ("lightning", "transformers", "torch_geometric", "bitcycle_lab.landscape")
LONG = ("study run", "doctor", "landscape", "range-test", "export", "report", "cost --paper")
TIMEOUT = 300  # seconds for one command, or for all blocks of one file

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<info>.*)$")
_END = "end of a block"
_FILE = re.compile(r"^# (?P<name>\w+\.py)$")
_SKIP = re.compile(r"^ *<!-- not executed: (?P<reason>.*\S) *-->$")
_VARIES = "<!-- numbers depend on the processor -->"
# On the line of a document's title: what a document shows must not warn.
_PRELUDE = (
    "import warnings, bitcycle; warnings.simplefilter('error', bitcycle.BitcycleWarning); "
    "del warnings, bitcycle"
)


@dataclass(frozen=True)
class Block:
    """A fenced block: where its first line is (0-based), what it is, why it is not run."""

    path: Path
    start: int
    language: str
    lines: tuple[str, ...]
    skip_reason: str | None
    varies: bool

    def __str__(self) -> str:
        return f"{self.path.name}:{self.start + 1}"


def blocks_of(path: Path) -> list[Block]:
    """All fenced blocks of a Markdown file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    blocks, at, reason, varies = [], 0, None, False
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is None:
            comment = _SKIP.match(lines[at])
            reason = comment["reason"] if comment else reason if not lines[at].strip() else None
            varies = lines[at].strip() == _VARIES
            at += 1
            continue
        start = at = at + 1
        while at < len(lines) and lines[at].strip() != fence["ticks"]:
            at += 1
        assert at < len(lines), f"{path.name}:{start}: this block is not closed"
        body = textwrap.dedent("\n".join(lines[start:at])).split("\n")
        blocks.append(Block(path, start, fence["info"].strip(), tuple(body), reason, varies))
        at, reason, varies = at + 1, None, False
    return blocks


def executed(path: Path, language: str) -> list[Block]:
    return [b for b in blocks_of(path) if b.language == language and b.skip_reason is None]


def environment() -> dict[str, str]:
    """A plain, 80 column wide terminal; one thread."""
    extra = {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **extra}


def run_python(path: Path, folder: Path) -> None:
    """Run the file's blocks as one script whose line numbers are those of the document."""
    script = [""] * len(path.read_text(encoding="utf-8").splitlines())
    script[0] = _PRELUDE
    blocks = executed(path, "python")
    for block in blocks:
        end = block.start + len(block.lines)
        script[block.start : end + 1] = [*block.lines, f"print({_END!r})"]  # in place of the fence
    target = folder / f"{path.name}.py"
    target.write_text("\n".join(script) + "\n", encoding="utf-8")
    done = run_script(target, folder, env=environment(), timeout=TIMEOUT)
    assert done.returncode == 0, f"{path.name} (same line numbers):\n{done.stderr}"
    printed = warnings_in(done.stdout + done.stderr)
    assert not printed, f"{path.name} (same line numbers):\n{printed}"
    outputs = dict(zip(blocks, done.stdout.split(f"{_END}\n"), strict=False))
    for block, output in shown_outputs(path):
        check_output(output.lines, outputs[block], str(block), varies=output.varies)


def shown_outputs(path: Path) -> list[tuple[Block, Block]]:
    """Each `python` block that is run and has its output below it, with that output."""
    text = path.read_text(encoding="utf-8").splitlines()
    found = []
    for code, output in pairwise(blocks_of(path)):
        if (code.language, output.language, code.skip_reason) == ("python", "text", None):
            between = text[code.start + len(code.lines) + 1 : output.start - 1]
            if all(line.strip() in ("", _VARIES) for line in between):
                found.append((code, output))
    return found


def run_console(block: Block, folder: Path) -> None:
    """Run the block's `$ bitcycle ...` lines; other commands are not run."""
    command, shown = None, []
    for line in (*block.lines, "$ end"):
        if not line.startswith("$ "):
            shown.append(line)
            continue
        if command is not None and command[0] == "bitcycle":
            done = run_command(command[1:], folder, env=environment(), timeout=TIMEOUT)
            assert done.returncode == 0, f"{block}: {shlex.join(command)}\n{done.stderr}"
            printed = warnings_in(done.stdout + done.stderr)
            assert not printed, f"{block}: {shlex.join(command)}\n{printed}"
            check_output(shown, done.stdout, f"{block}: {shlex.join(command)}")
        command, shown = shlex.split(line[2:], comments=True), []


def warnings_in(text: str) -> list[str]:
    """The lines that a reader would take for a warning, of ours or of another library."""
    return [line for line in text.splitlines() if re.search(r"warn(ings?)?\b|^\[W", line, re.I)]


def check_output(shown: Iterable[str], real: str, what: str, *, varies: bool = False) -> None:
    """Every line that is shown must be in the real output, in the same order."""
    rest = iter(line.strip() for line in real.splitlines())
    for line in (text.strip() for text in shown):
        if line not in ("", "..."):
            is_there = any(
                beginning(line) == beginning(other) if varies else line == other for other in rest
            )
            assert is_there, f"{what}\n{line!r} is not in:\n{real}"


def beginning(line: str) -> str:
    """Its first two words, without numbers."""
    return re.sub(r"\d+", "0", " ".join(line.split()[:2]))


def takes_long(path: Path, language: str) -> bool:
    """What takes seconds is run by `make test-all`."""
    if language == "python":
        lines = [line for block in executed(path, "python") for line in block.lines]
        starts = tuple(f"{word} {name}" for word in ("from", "import") for name in LONG_IMPORTS)
        return any(line.startswith(starts) for line in lines)
    commands = [line for block in executed(path, "console") for line in block.lines]
    starts = tuple(f"$ bitcycle {words}" for words in LONG)
    is_long = any(line.startswith(starts) and "--dry-run" not in line for line in commands)
    return is_long or sum(line.startswith("$ bitcycle train") for line in commands) > 3


def documents_with(language: str) -> list[Any]:
    return [
        pytest.param(
            path,
            id=str(path.relative_to(ROOT)),
            marks=[pytest.mark.slow] if takes_long(path, language) else [],
        )
        for path in DOCUMENTS
        if executed(path, language)
    ]


@pytest.mark.parametrize("path", documents_with("python"))
def test_the_python_blocks_of_a_document_run(path, tmp_path):
    run_python(path, tmp_path)


@pytest.mark.parametrize("path", documents_with("console"))
def test_the_commands_of_a_document_run_and_print_what_is_shown(path, tmp_path):
    for block in executed(path, "python"):
        if named := _FILE.match(block.lines[0]):
            (tmp_path / named["name"]).write_text("\n".join(block.lines), encoding="utf-8")
    for block in executed(path, "console"):
        run_console(block, tmp_path)


def test_no_document_has_a_block_of_a_language_that_is_never_run():
    blocks = [block for path in DOCUMENTS for block in blocks_of(path)]
    unknown = [f"{b}: {b.language}" for b in blocks if b.language not in EXECUTED + SHOWN]
    assert not unknown, f"write code as ```python, commands as ```console: {unknown}"


def test_relative_links_lead_somewhere():
    missing = []
    for path in DOCUMENTS:
        found = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose(path))
        links = [link for link in found if "://" not in link]
        missing += [(path.name, link) for link in links if not (path.parent / link).exists()]
    assert not missing


# -- the front door -------------------------------------------------------------------------------


def prose(path: Path) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def test_the_loop_of_the_readme_is_that_of_the_examples():
    """Its diff is that of the two files, with some lines between left out."""
    (block,) = [b for b in blocks_of(ROOT / "README.md") if b.language == "diff"]
    plain, cpt = (
        (ROOT / "examples" / name).read_text(encoding="utf-8").splitlines()
        for name in ("plain_loop.py", "plain_loop_cpt.py")
    )
    changes = [line for line in difflib.ndiff(plain, cpt) if line[0] in "+-" and line[2:].strip()]
    changes = [line for line in changes if not line[2:].startswith('"""')]
    assert all(line[0] == "+" for line in changes), "a converted loop keeps every line"
    assert [line[1:] for line in block.lines if line[:1] == "+"] == [line[2:] for line in changes]
    rest = iter(cpt)
    for line in block.lines:
        assert line[1:] in rest, f"{line!r} is not in plain_loop_cpt.py, in this order"
        assert line[0] == "+" or line[1:] in plain


def links_of(path: Path) -> set[Path]:
    """The files that a document links to."""
    found = re.findall(r"\]\(([^)#\s]+)", prose(path))
    return {(path.parent / link).resolve() for link in found if "://" not in link}


def test_the_index_reaches_every_page():
    docs = ROOT / "docs"
    linked = links_of(docs / "index.md")
    assert not {*docs.glob("*.md"), *(docs / "api").glob("*.md")} - {docs / "index.md"} - linked
    assert linked & {*(docs / "adr").glob("*.md")}  # the site's menu lists the others
