"""Every schedule, quantizer, format and layer of the registries is named on its page."""

from __future__ import annotations

import re

import pytest

from bitcycle.formats import list_formats
from bitcycle.nn import LAYERS
from bitcycle.quantizers import QUANTIZERS
from bitcycle.schedules import list_schedules

from .conftest import ROOT

NAMES = {
    "schedules": [each.name for each in list_schedules()],
    "quantizers": list(QUANTIZERS),
    "formats": [each.name for each in list_formats()],
    "layers": [name.rpartition(".")[2] for name in LAYERS],
}


@pytest.mark.parametrize("page", NAMES)
def test_a_page_names_all_that_is_registered(page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    code = " ".join(re.findall(r"`([^`\n]+)`", text.replace("/", " ")))
    assert len(NAMES[page]) > 5
    words = set(re.findall(r"[\w-]+", code))
    assert not [name for name in NAMES[page] if name not in words]
