"""Escaping, in its one place."""

import json

import pytest

from bitcycle.report.page.escape import Html, chart_text, join, script_json, tag, trusted

from .made_up import BREAKOUT, SCRIPT


@pytest.mark.parametrize("text", [SCRIPT, BREAKOUT, "a & b", "\"quoted\" 'too'"])
def test_a_text_comes_out_of_an_element_as_it_went_in_and_as_text(text):
    from .made_up import Elements

    seen = Elements(tag("p", text, title=text))
    assert seen.names() == ["p"]
    assert seen.found[0][1] == {"title": text}
    assert "".join(seen.texts) == text


def test_markup_is_not_escaped_twice():
    assert tag("p", tag("b", "<")) == "<p><b>&lt;</b></p>"
    assert isinstance(join("a", None, trusted("<hr>")), Html)
    assert join("a", None, trusted("<hr>")) == "a<hr>"


def test_text_joined_to_markup_by_hand_is_text_again():
    assert tag("p", tag("b", "x") + "<i>") == "<p>&lt;b&gt;x&lt;/b&gt;&lt;i&gt;</p>"


@pytest.mark.parametrize("text", [SCRIPT, BREAKOUT, "<!--", "]]>", "a\u2028b\u2029c", "&lt;"])
def test_json_in_a_script_reads_back_and_has_no_character_that_ends_it(text):
    written = script_json({text: [text]})
    assert json.loads(written) == {text: [text]}
    assert not set(written) & set("<>&\u2028\u2029")


def test_a_file_name_that_is_no_utf8_can_be_written():
    assert tag("p", "a\udcffb", title="\udcff").encode("utf-8") == b'<p title="?">a?b</p>'


def test_nan_is_no_json():
    with pytest.raises(ValueError, match="JSON compliant"):
        script_json([float("nan")])


def test_a_chart_takes_no_markup_and_no_template_from_a_name():
    assert chart_text(f"{BREAKOUT} %{{y}}").count("<") == 0
    assert "%{" not in chart_text("%{y}")
