"""The committed results: every page, picture and made part is what its data files give."""

import json
import re
from pathlib import Path

import pytest

from bitcycle.report.evidence.blocks import NAMES, fill
from bitcycle.report.evidence.picture import creator
from bitcycle.report.evidence.render import data_folder, render_folder
from bitcycle.study.base import STUDIES

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LARGEST = 400_000  # bytes of a file

needs_results = pytest.mark.skipif(
    not data_folder(RESULTS).is_dir(), reason="no results are committed yet"
)


@pytest.fixture(scope="module")
def rendered():
    return render_folder(RESULTS)


@needs_results
def test_every_page_is_what_its_data_give(rendered):
    for name, text in rendered.items():
        stored = (RESULTS / name).read_text(encoding="utf-8")
        if name.endswith(".svg") and creator() not in stored:
            continue  # another matplotlib draws other bytes
        assert stored == text, f"{name}: bitcycle study publish --render results"


@needs_results
def test_nothing_else_lies_there(rendered):
    known = {*rendered, "data"}
    assert {path.name for path in RESULTS.iterdir()} == known
    assert {path.suffix for path in data_folder(RESULTS).iterdir()} == {".json"}
    assert all(path.stat().st_size < LARGEST for path in RESULTS.rglob("*") if path.is_file())


@needs_results
def test_no_page_has_anything_of_a_machine_in_it():
    for path in RESULTS.rglob("*"):
        if path.suffix in (".md", ".json"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.<])/(tmp|home|root|work|Users|mnt)/", text), path.name


def made_documents():
    return [path for path in DOCUMENTS if "<!-- made: " in path.read_text(encoding="utf-8")]


@needs_results
@pytest.mark.parametrize("path", made_documents(), ids=lambda path: path.name)
def test_made_parts_of_documents_are_what_the_data_give(path):
    text = path.read_text(encoding="utf-8")
    assert fill(text, RESULTS, beside=path.parent) == text, (
        f"bitcycle study publish --render results --fill {path.relative_to(ROOT)}"
    )


@pytest.mark.parametrize("path", made_documents(), ids=lambda path: path.name)
def test_made_parts_have_a_name_and_an_end(path):
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"<!-- made: (.*?) -->", text)
    assert set(names) <= set(NAMES)
    assert text.count("<!-- end -->") == len(names)


@needs_results
def test_every_study_has_its_time_and_its_number_of_runs():
    stored = json.loads((data_folder(RESULTS) / "studies.json").read_text(encoding="utf-8"))
    found = {row["name"]: row["runs"] for row in stored["studies"]}
    assert list(found) == list(STUDIES.names()), "python benchmarks/study_times.py ..."
    for name, number in found.items():
        planned = {run.config.run_name for run in STUDIES[name]().runs("runs")}
        assert number == len(planned), f"python benchmarks/study_times.py ... --only {name}"
