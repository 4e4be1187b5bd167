"""The skeleton."""

import base64
import hashlib
import re

from bitcycle.report.page.assets import script
from bitcycle.report.page.document import Page, render
from bitcycle.report.page.escape import tag, trusted

from .made_up import BREAKOUT, Elements


def made_up_page(**changes):
    settings = {
        "title": BREAKOUT, "subtitle": "", "headline": "h", "status": "s", "notes": (),
        "menu": (("a", "A"),), "sections": [tag("section", id="a")], "footer": "f", **changes,
    }  # fmt: skip
    return render(Page(**settings), trusted("plotly()"))


def test_it_begins_as_html_with_its_character_set_first():
    page = made_up_page()
    assert page.startswith('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">')


def test_the_title_is_text():
    assert "img" not in Elements(made_up_page()).names()


def test_the_policy_allows_only_our_scripts_and_no_network():
    page = made_up_page()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src &#x27;none&#x27;")
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    assert digest in policy
    assert "script-src &#x27;unsafe" not in policy
    assert "http" not in policy


def test_every_link_of_the_menu_has_its_place():
    seen = Elements(made_up_page())
    places = {attributes.get("id") for _, attributes in seen.found}
    links = [attributes["href"][1:] for name, attributes in seen.found if name == "a"]
    assert links == ["a"]
    assert set(links) <= places
