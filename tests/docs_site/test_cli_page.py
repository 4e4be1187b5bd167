"""The page of the command line has every command, argument and option of the parsers."""

from __future__ import annotations

import argparse
import html
import re

import pytest

from bitcycle_lab.cli.main import build_parser

from .test_theme import load


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Every command and sub-command by its heading."""
    found = {}
    for command in build_parser()[1].values():
        for parser in (command, *(command.get_default("commands") or {}).values()):
            found[parser.prog] = parser
    return found


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """The text below each heading of the page."""
    _, *parts = re.split(r"^##+ (.*)$", html.unescape(load("commands").describe()), flags=re.M)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_it_has_a_section_for_every_command(sections):
    assert list(sections) == list(parsers())
    assert "bitcycle study run" in sections


@pytest.mark.parametrize("name", parsers())
def test_a_section_has_every_argument_and_option(sections, name):
    for action in parsers()[name]._actions:  # argparse has no public way to ask
        if action.help == argparse.SUPPRESS or action.dest in ("help", "command"):
            continue
        if isinstance(action, argparse._SubParsersAction):
            continue
        place = [action.metavar] if action.metavar else action.choices or [action.dest.upper()]
        for word in map(str, action.option_strings or place):
            assert re.search(rf"(?<![-\w]){re.escape(word)}(?![-\w])", sections[name]), word
