"""The whole page."""

import gzip
import sys
from base64 import b64decode
from dataclasses import replace
from importlib.resources import files

import pytest

from bitcycle.extras import MissingExtraError
from bitcycle.report.figures import layers
from bitcycle.report.page import write_page, write_run_page
from bitcycle.report.runs import find_runs
from tests.report.made_up import BREAKOUT, SCRIPT, Elements, made_up_cost


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
    scripts = [attributes for name, attributes in seen.found if name == "script"]
    others = [a for a in scripts if a.get("type") != "application/json"]
    assert others == [{"type": "application/gzip", "id": "plotly"}, {}]
    assert "img" not in seen.names()
    assert not any(key.startswith("on") for _, attributes in seen.found for key in attributes)
    names = [trace.get("name", "") for figure in seen.data for trace in figure["data"]]
    assert any("script" in name for name in names)
    assert not any("<script" in name or "<img" in name or "%{" in name for name in names)


def test_nothing_is_loaded_from_elsewhere(page_file, seen):
    assert not {"link", "iframe", "object", "embed"} & set(seen.names())
    for _, attributes in seen.found:
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert page_file.stat().st_size < 2_000_000


def test_the_charts_are_all_there(seen):
    kinds = [{trace["type"] for trace in figure["data"]} for figure in seen.data]
    assert {"contour", "scatter"} in kinds
    assert kinds.count({"bar"}) == 3
    assert kinds.count({"scatter"}) == 1 + 2 + 4 + 1  # cost, curves, schedules, range test


def test_a_name_that_is_no_utf8_can_be_written(made, monkeypatch, tmp_path):
    monkeypatch.setattr(layers, "price_method", lambda method: made_up_cost())
    study = replace(made.study, notes=("a\udcffb",))
    path = write_page(replace(made, study=study), tmp_path / "x.html")
    assert "a?b" in path.read_text(encoding="utf-8")


def test_the_page_goes_to_its_path_or_to_the_folder_of_the_study(page_file, made, monkeypatch):
    assert page_file.name == "report.html"
    assert page_file.parent.parent.name == "studies"
    monkeypatch.setattr(layers, "price_method", lambda method: made_up_cost())
    target = made.output / "x.html"
    assert write_page(made, target) == target
    with pytest.raises(ValueError, match=r"must end in .html"):
        write_page(made, made.output / "x.txt")


def test_the_page_of_runs_tells_their_final_values(made, tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "price_method", lambda method: made_up_cost())
    path = write_run_page(find_runs(made.output), tmp_path / "runs.html")
    assert ": accuracy 91.0 ± 1.4" in Elements(path.read_text(encoding="utf-8")).text


def test_the_page_has_the_vendored_plotly_and_names_its_license(page):
    _, _, rest = page.partition('id="plotly">')
    packed, _, _ = rest.partition("</script>")
    folder = files("bitcycle.report.page")
    bundle = folder.joinpath("plotly-cartesian.min.js").read_bytes()
    assert gzip.decompress(b64decode(packed, validate=True)) == bundle
    assert b"plotly.js (cartesian - minified) v4.1.1" in bundle[:100]
    assert "Copyright Plotly, Inc., under the MIT license" in page
    license_text = folder.joinpath("plotly-cartesian.LICENSE.txt").read_text()
    assert license_text.startswith("MIT License")


def test_a_missing_package_is_an_error_that_names_the_extra(made, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r'pip install "bitcycle\[report\]"'):
        write_page(made)
    assert not made.folder.exists()
