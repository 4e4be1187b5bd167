"""Figures as SVG elements: escaped, repeatable, without ids in common."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bitcycle_lab.report.figures import style
from bitcycle_lab.report.page.svg import inline_svg
from tests.bitcycle_lab.report.made_up import BREAKOUT, SCRIPT, Elements

pytest.importorskip("matplotlib")


def labelled(text):
    """A figure with clipped markers and the text in every place that takes one."""
    figure = style.new_figure(8.0, 4.0)
    axes = figure.subplots()
    shown = style.plain_text(text)
    axes.plot([0, 1], [0, 1], marker="o", label=shown or "empty")
    axes.set_yticks([0.5], [shown])
    axes.annotate(shown, (0.5, 0.5))
    style.style_axes(axes, x=shown, title=shown)
    axes.legend()
    return figure


@pytest.mark.filterwarnings("ignore:Glyph")
@settings(max_examples=25)
@given(st.text(max_size=30))
@example(SCRIPT)
@example(BREAKOUT)
@example("a & b <b>")
@example(r"$x$ $\frac{ \$")
@example("a\udcff\x00\x1b]b")
@example("]]> <!-- -->")
@example("_hidden")
def test_any_text_is_drawn_as_text(text):
    found = Elements(inline_svg(labelled(text), "a"))
    assert not {"script", "img", "b", "style"} & set(found.names())
    assert not any(key.startswith("on") for _, attributes in found.found for key in attributes)
    expected = style.plain_text(text).replace(r"\$", "$").split()
    assert [drawn.split() for drawn in found.texts].count(expected) >= 5 or not expected


def test_it_is_the_same_at_every_call_and_shares_no_id_with_another_figure():
    one, again, other = (inline_svg(labelled("a"), name) for name in ("a", "a", "b"))
    assert one == again
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (one, other)]
    assert ids[0]
    assert ids[0].isdisjoint(ids[1])


def test_every_reference_finds_its_element():
    text = inline_svg(labelled("a"), "a")
    references = re.findall(r'(?:href="|url\()#([^")]+)', text)
    assert references
    assert set(references) == set(re.findall(r' id="([^"]+)"', text))


def test_it_scales_and_has_no_date_and_no_style_for_the_page():
    root = ElementTree.fromstring(inline_svg(labelled("a"), "a"))
    assert set(root.attrib) == {"viewBox", "version"}
    tags = {element.tag.partition("}")[2] for element in root.iter()}
    assert not {"metadata", "style"} & tags
