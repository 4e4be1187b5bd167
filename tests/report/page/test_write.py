"""The whole page."""

import pytest

from bitcycle.report.page import layers, write_page, write_run_page
from bitcycle.report.page.runs import find_runs

from .conftest import made_up_cost
from .made_up import BREAKOUT, SCRIPT, Elements


@pytest.fixture
def seen(page):
    return Elements(page)


def test_every_section_is_there_and_in_the_menu(seen):
    places = {attributes.get("id") for _, attributes in seen.found}
    expected = {
        "results", "schedules", "layers", "range-tests", "landscapes", "reproduce", "environment",
    }  # fmt: skip
    assert expected <= places
    links = {attributes["href"][1:] for name, attributes in seen.found if name == "a"}
    assert links == expected


def test_headline_status_notes_and_names_are_shown(seen):
    text = "".join(seen.texts)
    assert "against static 8/8: 60 % of the cost, accuracy +2 points" in text
    assert "4 methods, 8 runs: 5 done, 1 failed, 2 not begun" in text
    assert f"a note {BREAKOUT}" in text
    assert f"what if {SCRIPT}?" in text


def test_no_name_becomes_an_element_an_attribute_or_a_script(seen):
    scripts = [attributes for name, attributes in seen.found if name == "script"]
    assert [a for a in scripts if a.get("type") != "application/json"] == [{}, {}]  # plotly's, ours
    assert "img" not in seen.names()
    assert not any(key.startswith("on") for _, attributes in seen.found for key in attributes)


def test_nothing_is_loaded_from_elsewhere(seen):
    assert not {"link", "iframe", "object", "embed"} & set(seen.names())
    for _, attributes in seen.found:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")


def test_it_is_smaller_than_6_mb(page_file):
    assert page_file.stat().st_size < 6_000_000


def test_the_charts_are_all_there(seen):
    kinds = [{trace["type"] for trace in figure["data"]} for figure in seen.data]
    assert {"contour", "scatter"} in kinds
    assert kinds.count({"bar"}) == 3
    assert kinds.count({"scatter"}) >= 1 + 2 + 4 + 1  # cost, curves, schedules, range test


def test_the_page_of_a_study_goes_to_its_folder_or_where_it_is_told(page_file, made, monkeypatch):
    assert page_file.name == "report.html"
    assert page_file.parent.parent.name == "studies"
    monkeypatch.setattr(layers, "price_method", lambda method: made_up_cost())
    target = made.output / "x.html"
    assert write_page(made, target) == target
    with pytest.raises(ValueError, match=r"must end in .html"):
        write_page(made, made.output / "x.txt")


def test_the_page_of_runs_says_their_final_values(made, tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "price_method", lambda method: made_up_cost())
    path = write_run_page(find_runs(made.output), tmp_path / "runs.html")
    text = Elements(path.read_text(encoding="utf-8")).text
    assert ": accuracy 91.0 ± 1.4" in text
    assert "All runs:" not in text
