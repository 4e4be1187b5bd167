"""The real site: built without a warning, complete, and at home without a network."""

from __future__ import annotations

import inspect
import re
import shutil

import pytest
import yaml
from mkdocstrings import Inventory

from tests.test_public_api import public

from .conftest import ROOT, build

pytestmark = pytest.mark.slow


def test_it_is_built_without_a_warning(built):
    _, said = built
    assert not re.search("warning|error", said, re.I), said


def test_every_public_name_can_be_linked_to(site):
    with (site / "objects.inv").open("rb") as file:
        known = set(Inventory.parse_sphinx(file))
    missing = [
        name
        for name, thing in public()
        if not inspect.ismodule(thing)
        and name not in known
        and f"{thing.__module__}.{thing.__qualname__}" not in known
    ]
    assert not missing


def test_pages_ask_for_nothing_from_a_network(site):
    loads = r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^"'\s>]+"""
    pages = list(site.rglob("*.html"))
    assert pages
    for page in pages:
        assert not re.findall(loads, page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\(.?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_links_out_of_docs_lead_to_copies(site):
    page = (site / "integrations.html").read_text(encoding="utf-8")
    assert 'href="project/examples/plain_loop_cpt.py.html"' in page
    example = (site / "project" / "examples" / "plain_loop_cpt.py.html").read_text(encoding="utf-8")
    assert "PrecisionScheduler" in example
    readme = (site / "project" / "index.html").read_text(encoding="utf-8")
    assert 'href="../export.html"' in readme
    assert 'href="../schedules.html"' in readme


@pytest.fixture
def project(tmp_path):
    """A small project with our settings; its one page is for the test to write."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/cost.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("# Title\n\n## Part\n", encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "theme", tmp_path / "docs" / "theme")
    (tmp_path / "src").symlink_to(ROOT / "src")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    del settings["nav"]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return tmp_path


def build_with(project, text):
    (project / "docs" / "index.md").write_text(f"# Home\n\n{text}\n", encoding="utf-8")
    return build(project / "mkdocs.yml", project / "site")


def test_every_link_that_leads_nowhere_is_named(project):
    done = build_with(project, "[a](cost.md#part) [b](../README.md#part) [c](#home)")
    assert done.returncode == 0, done.stderr
    links = ["nowhere.md", "../examples/nothing.py", "cost.md#nothing", "#nothing", "/cost.md"]
    done = build_with(project, "\n".join(f"[a]({link})" for link in links))
    assert done.returncode == 1
    for link in links:
        assert (
            f"contains a link '{link}'" in done.stderr or f"absolute link '{link}'" in done.stderr
        )
    assert done.stderr.count("WARNING") == len(links)
