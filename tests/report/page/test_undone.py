"""Runs that are not in the results."""

from dataclasses import replace

from bitcycle.report.page import undone
from bitcycle.report.page.undone import undone_card

from .made_up import BREAKOUT, Elements


def test_failed_runs_come_first_with_their_error_as_text(made):
    seen = Elements(undone_card(made))
    text = "".join(seen.texts)
    assert "3 of 8 runs are not in the results" in text
    assert text.index("failed") < text.index("not begun")
    assert f"the loss is NaN {BREAKOUT}" in text
    assert "img" not in seen.names()


def test_when_all_are_done_there_is_nothing_to_say(made):
    assert undone_card(replace(made, methods=made.methods[:2])) is None


def test_a_row_has_all_seeds_of_one_method_and_reason_and_rows_are_limited(made, monkeypatch):
    assert "0, 1" in Elements(undone_card(made)).texts
    monkeypatch.setattr(undone, "MOST", 1)
    seen = Elements(undone_card(made))
    assert seen.names().count("tr") == 2
    assert "1 more methods are not listed" in seen.text
