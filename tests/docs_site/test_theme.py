"""What happens to pages and docstrings on their way into the site."""

from __future__ import annotations

import doctest
import importlib.util
from types import SimpleNamespace

import pytest

from .conftest import ROOT


def load(name):
    path = ROOT / "docs" / "theme" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"theme_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages, docstrings = load("pages"), load("docstrings")


@pytest.mark.parametrize("module", [pages, docstrings], ids=["pages", "docstrings"])
def test_the_examples_in_its_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


def relinked(source, text, there):
    """The text of a page of the site, where only these pages exist."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri=source))
    files = SimpleNamespace(get_file_from_path=lambda uri: uri if uri in there else None)
    return pages.on_page_markdown(text, page=page, config=None, files=files)


@pytest.mark.parametrize(
    ("source", "text", "there", "expected"),
    [
        ("adr/0001.md", "[a](../../README.md#limits) [b](../../examples/x.py)",
         {"project/README.md", "project/examples/x.py.md"},
         "[a](../project/README.md#limits) [b](../project/examples/x.py.md)"),
        ("adr/0001.md", "[c](0002.md) [d](https://x.y/z.md)", {"adr/0002.md"}, None),
        ("project/README.md", "[a](docs/export.md), [b](docs/adr/0001.md#context)",
         {"export.md", "adr/0001.md"},
         "[a](../export.md), [b](../adr/0001.md#context)"),
        ("start.md", "[a](../nothing.md)", set(), None),  # the builder reports it
        ("start.md", "```text\n[a](../README.md)\n```\n", {"project/README.md"}, None),
    ],
)  # fmt: skip
def test_links_between_docs_and_the_project_lead_to_their_pages(source, text, there, expected):
    assert relinked(source, text, there) == (text if expected is None else expected)


def test_a_docstring_without_parameters_stays_as_it_is():
    text = "One line.\n\nA list:\n- one\n- two\n\n    code = 1\n"
    assert docstrings.readable(text, ["code"]) == text


def test_parameters_become_a_list_wherever_a_sentence_begins_with_one():
    text = "Does.\n\nIt does. low,\nhigh: the ends. Both count. seed: of\n    the noise. those: no."
    assert docstrings.readable(text, ["low", "high", "seed"]) == (
        "Does.\n\nIt does.\n\n- `low`, `high`: the ends. Both count.\n"
        "- `seed`: of the noise. those: no."
    )


def test_doctests_become_blocks_of_code():
    text = "Adds.\n\nAs here:\n>>> add(1, 2)\n3\n\nSee `add`."
    assert docstrings.readable(text, ["a"]) == (
        "Adds.\n\nAs here:\n\n```pycon\n>>> add(1, 2)\n3\n```\n\nSee `add`."
    )
