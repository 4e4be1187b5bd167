"""The page of the command line: what the parsers say, written when the site is built."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from bitcycle_lab.cli.main import build_parser

HEAD = """\
# Command line

Every command takes `--help`, and `--debug`, which shows the traceback of an error. The exit code is
0, 1 for a failure, 2 for a value or a path that cannot be right, 130 after Ctrl-C.
`bitcycle --version` prints the version.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page as if it were docs/cli.md."""
    files.append(File.generated(config, "cli.md", content=describe()))
    return files


def describe() -> str:
    """The whole page."""
    parser, commands = build_parser()
    one_line = {name: text for name, text in helps(parser)}
    parts = [HEAD, overview(one_line)]
    for name, command in commands.items():
        parts += section(command, one_line[name], level=2)
        inner = command.get_default("commands") or {}
        lines = dict(helps(command)) if inner else {}
        for inner_name, inner_command in inner.items():
            parts += section(inner_command, lines[inner_name], level=3)
    return "\n".join(parts)


def helps(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """The sub-commands with their one line."""
    for action in parser._actions:  # argparse has no public way to ask
        if isinstance(action, argparse._SubParsersAction):
            yield from ((one.dest, one.help or "") for one in action._choices_actions)


def overview(one_line: dict[str, str]) -> str:
    rows = [f"| [{name}](#bitcycle-{name}) | {cell(text)} |" for name, text in one_line.items()]
    return "\n".join(["| command | |", "|---|---|", *rows, ""])


def section(parser: argparse.ArgumentParser, one_line: str, *, level: int) -> list[str]:
    """A heading, what it does, how it is called, its arguments, and what the parser ends with."""
    actions = [a for a in parser._actions if a.help != argparse.SUPPRESS and a.dest != "help"]
    actions = [a for a in actions if not isinstance(a, argparse._SubParsersAction)]
    places = [place(a) for a in actions if not a.option_strings]
    if any(a.option_strings for a in actions):
        places.append("[OPTIONS]")
    if parser.get_default("takes_overrides"):
        places.append("[--KEY VALUE ...]")
    if parser.get_default("commands"):
        places.append("COMMAND ...")
    text = parser.description or f"{one_line[0].upper()}{one_line[1:]}."
    usage = f"```text\n{' '.join([parser.prog, *places])}\n```"
    parts = [f"{'#' * level} {parser.prog}", "", text, "", usage, ""]
    rows = [f"| {code(name(a))} | {cell((a.help or '') % vars(a))} |" for a in actions]
    if rows:
        parts += ["| argument | meaning |", "|---|---|", *rows, ""]
    if parser.epilog:
        is_raw = parser.formatter_class is argparse.RawDescriptionHelpFormatter
        parts += [f"```text\n{parser.epilog.rstrip()}\n```" if is_raw else parser.epilog, ""]
    return parts


def place(action: argparse.Action) -> str:
    """A position as usage lines write it."""
    word = name(action)
    forms = {"?": f"[{word}]", "*": f"[{word} ...]", "+": f"{word} [{word} ...]"}
    return forms.get(str(action.nargs), word)


def name(action: argparse.Action) -> str:
    """An argument with what it takes."""
    choices = "|".join(map(str, action.choices or ()))
    if not action.option_strings:
        return str(action.metavar or choices or action.dest.upper())
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    value = str(action.metavar or choices or action.dest.upper())
    return f"{names} {value} ..." if action.nargs in ("+", "*") else f"{names} {value}"


def code(text: str) -> str:
    if "|" in text:  # ends a cell, in one dialect of Markdown even within `code`
        return f"<code>{text.replace('|', '&#124;')}</code>"
    return f"`{text}`"


def cell(text: str) -> str:
    """Text in a table."""
    return text.replace("<", "&lt;").replace("|", r"\|").replace("*", r"\*")
