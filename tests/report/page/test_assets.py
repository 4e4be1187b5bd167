"""The page's files."""

import sys

import pytest

from bitcycle.extras import MissingExtraError
from bitcycle.report.page.assets import plotly_script, script, style


def test_style_and_script_cannot_end_their_element():
    for text in (style(), script(), plotly_script()):
        assert "</script" not in text
        assert "</style" not in text


def test_the_style_brings_nothing_from_elsewhere():
    assert "url(" not in style()
    assert "@import" not in style()


def test_without_plotly_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.offline", raising=False)
    with pytest.raises(MissingExtraError, match=r'pip install "bitcycle\[report\]"'):
        plotly_script()
