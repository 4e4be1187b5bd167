"""The whole page."""

import re
import sys
from dataclasses import replace
from functools import partial

import pytest

from bitcycle.extras import MissingExtraError
from bitcycle_lab.report.figures import layers
from bitcycle_lab.report.figures.demo import draw_times
from bitcycle_lab.report.page import write_page, write_run_page
from bitcycle_lab.report.page.sections import Card
from bitcycle_lab.study.comparison import find_runs
from bitcycle_lab.study.results import read_study
from tests.bitcycle_lab.report.made_up import (
    BREAKOUT,
    SCRIPT,
    Elements,
    demo_result,
    made_up_cost,
    write_study,
)


@pytest.fixture(scope="module")
def seen(page):
    return Elements(page)


def test_every_section_is_there_and_in_the_menu(page, seen):
    assert page.startswith("<!DOCTYPE html>")
    places = {attributes.get("id") for _, attributes in seen.found}
    expected = {
        "results", "schedules", "layers", "range-tests", "landscapes", "reproduce", "environment",
    }  # fmt: skip
    assert expected <= places
    links = {attributes["href"][1:] for name, attributes in seen.found if name == "a"}
    assert links == expected


def test_names_notes_and_errors_are_text(seen):
    text = "".join(seen.texts)
    assert "4 methods, 8 runs: 5 done, 1 failed, 2 not begun" in text
    assert f"a note {BREAKOUT}" in text
    assert f"what if {SCRIPT}?" in text
    assert f"the loss is NaN {BREAKOUT}" in text
    assert f"CPU {SCRIPT}" in text


def test_no_name_becomes_an_element_an_attribute_or_a_script(seen):
    assert [attributes for name, attributes in seen.found if name == "script"] == [{}]
    assert "img" not in seen.names()
    assert not any(key.startswith("on") for _, attributes in seen.found for key in attributes)


def test_every_figure_is_there_with_a_label_and_no_id_twice(page, seen):
    labels = [attributes["aria-label"] for _, attributes in seen.found
              if attributes.get("class") == "chart"]  # fmt: skip
    starts = [label.partition(" ")[0] for label in labels]
    assert starts == [
        "Accuracy", "test", "training", *["bits"] * 4, *["training"] * 3, "range", "loss",
    ]  # fmt: skip
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > len(labels)


def test_nothing_is_loaded_from_elsewhere(page_file, seen):
    assert not {"link", "iframe", "object", "embed"} & set(seen.names())
    for _, attributes in seen.found:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert page_file.stat().st_size < 1_000_000


def test_names_that_are_formulas_or_no_utf8_are_drawn(made, monkeypatch, tmp_path):
    monkeypatch.setattr(layers, "price_method", lambda method: made_up_cost())
    names = ["a\udcffb", r"$\frac{1$ & $x$", "_ \x1b", "later"]
    methods = tuple(replace(each, method=replace(each.method, label=name))
                    for each, name in zip(made.methods, names, strict=True))  # fmt: skip
    study = replace(made.study, baseline=None, methods=tuple(each.method for each in methods))
    path = write_page(replace(made, study=study, methods=methods), tmp_path / "x.html")
    texts = Elements(path.read_text(encoding="utf-8")).texts
    assert texts.count("a?b") > 1
    assert sum(names[1] in text for text in texts) > 1


def test_the_page_goes_to_its_path_or_to_the_folder_of_the_study(page_file, made, monkeypatch):
    assert page_file.name == "report.html"
    assert page_file.parent.parent.name == "studies"
    monkeypatch.setattr(layers, "price_method", lambda method: made_up_cost())
    target = made.output / "x.html"
    assert write_page(made, target) == target
    with pytest.raises(ValueError, match=r"must end in .html"):
        write_page(made, made.output / "x.txt")


def test_the_page_of_runs_has_their_values_and_the_settings_that_differ(
    made, tmp_path, monkeypatch
):
    monkeypatch.setattr(layers, "price_method", lambda method: made_up_cost())
    path = write_run_page(find_runs(made.output), tmp_path / "runs.html")
    text = Elements(path.read_text(encoding="utf-8")).text
    assert "91.0 ± 1.4" in text
    assert "precision.forward CR:3-8:4 3 8" in text


def test_a_missing_package_is_an_error_that_names_the_extra(made, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[report\]"'):
        write_page(made)
    assert not made.folder.exists()


def test_further_figures_stand_first_with_their_notes(tmp_path):
    output = tmp_path / "runs"
    made = read_study(write_study(output), output)
    draw = partial(draw_times, demo_result(), 5.6)
    card = Card("Time of a step", draw, "time of each method", "One thread.")
    page = Elements(write_page(made, tmp_path / "page.html", cards=[card]).read_text("utf-8"))
    labels = [each["aria-label"] for _, each in page.found if each.get("class") == "chart"]
    assert labels[0] == "time of each method"
    assert labels[1].startswith("Accuracy")
    assert "One thread." in page.text
