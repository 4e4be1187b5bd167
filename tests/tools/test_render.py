"""`python -m tools.results render`: tables and pictures of pages, from their data files."""

import json
import re
from pathlib import Path

import pytest
from scipy import stats

from tests.bitcycle_lab.study.made_up import method, study_result, write_runs
from tools.results.__main__ import DATA, default_pages, main
from tools.results.pages import outdated, render
from tools.results.study_data import gather, to_json

ROOT = Path(__file__).parents[2]
BASE = {0: 90.0, 1: 91.0, 2: 92.0}
WORSE = {0: 88.0, 1: 89.1, 2: 89.9}


@pytest.fixture
def folder(tmp_path):
    """The data of a study in two groups, and of a measurement as its command writes it."""
    entries = []
    for steps in (100, 200):
        own = {"group": f"net, {steps} steps", "changes": {"steps": steps}}
        entries += [
            (method("static 8", **own), BASE, 100.0),
            (method("static 6", 6, **own), BASE, 50.0),
            (method("cycle", "CR:3-8:8", **own), WORSE, 60.0),
        ]
    result = study_result(entries, name="made", baseline="static 8", output=tmp_path / "runs")
    write_runs(result)
    (tmp_path / "made.json").write_text(to_json(gather(result)))
    rows = [
        {"workload": "lstm", "kernel": "float32", "bits": "", "seconds": [0.5, 0.4], "base": None},
        {"workload": "lstm", "kernel": "auto", "bits": "w4a4e8", "seconds": [0.3, 0.2],
         "base": 0.4},
        {"workload": "gcn", "kernel": "other", "bits": "", "seconds": [], "base": None},
    ]  # fmt: skip
    (tmp_path / "speed.json").write_text(json.dumps({"rows": rows}))
    return tmp_path


def rendered(folder, text, name="page.md"):
    page = folder / name
    page.write_text(text)
    return render([page], folder)[page]


def test_only_what_stands_between_markers_is_replaced(folder):
    before, after = "# Ours\n\n| a | b |\n<!-- not executed: x -->\n", "\nThe *end* -->, \\_ <b>.\n"
    part = "<!-- table: made values | group: net, 100 steps -->\n{}<!-- end -->\n"
    text = before + part.format("old text\n\n") + after
    found = rendered(folder, text)
    assert found.startswith(before)
    assert found.endswith(after)
    assert "old text" not in found
    rows = [line for line in found.splitlines() if re.match(r"\| (static|cycle)", line)]
    assert [row.split(" | ")[0] for row in rows] == ["| static 8", "| static 6", "| cycle"]
    assert rendered(folder, found) == found


def test_a_study_can_be_compared_with_another_method(folder):
    """Differences of -2, -1.9 and -2.1: t(0.975, 2) 0.1 / sqrt(3) = 0.25."""
    text = "<!-- table: made differences | against: static 6 | method: cycle -->\n<!-- end -->"
    line = "| cycle | static 6 | -2.00 (-2.25 to -1.75) | 3 |"
    assert rendered(folder, text).count(line) == 2


def test_a_measurement_is_a_table_of_ratios(folder):
    text = "<!-- table: speed ratios -->\n<!-- end -->"
    assert "| network | auto 4/8 |\n| --- | ---: |\n| lstm | 0.50 |\n" in rendered(folder, text)


@pytest.mark.parametrize("kind", ["made result", "made differences"])
def test_a_picture_is_drawn_into_the_file_below_its_marker(folder, kind):
    page = folder / "page.md"
    page.write_text(f"<!-- picture: {kind} -->\n[![What](a.svg)](made.md)\n")
    files = render([page], folder)
    assert files[folder / "a.svg"].startswith("<?xml")
    assert files == render([page], folder)  # the same bytes
    assert outdated(files) == [folder / "a.svg"]
    assert main(["render", str(page), "--data", str(folder), "--check"]) == 1
    assert not (folder / "a.svg").exists()
    assert main(["render", str(page), "--data", str(folder)]) == 0
    assert outdated(files) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("<!-- table: nothing values -->\n<!-- end -->", "nothing.json"),
        ("<!-- table: made medians -->\n<!-- end -->", "medians"),
        ("<!-- table: made values | colour: red -->\n<!-- end -->", "colour"),
        ("<!-- table: made values | group: net, 300 steps -->\n<!-- end -->", "net, 300 steps"),
        ("<!-- table: made values | group -->\n<!-- end -->", "group"),
        ("<!-- table: made differences | against: static 9 -->\n<!-- end -->", "static 9"),
        ("<!-- table: speed ratios | column: auto 9/9 -->\n<!-- end -->", "auto 9/9"),
        ("<!-- table: speed ratios | against: static 8 -->\n<!-- end -->", "against"),
        ("<!-- table: made values | column: n -->\n<!-- end -->", "column"),
        ("<!-- table: made values | against: a | against: b -->\n<!-- end -->", "a, b"),
        ("<!-- table: speed values -->\n<!-- end -->", "values"),
        ("<!-- table: made values -->\n| a |", "end"),
        ("<!-- table: made values -->\n<!-- picture: made result -->\n<!-- end -->", "end"),
        ("<!-- tables: made values -->\n<!-- end -->", "tables"),
        ("text\n<!-- end -->", "end"),
        ("<!-- picture: made nothing -->\n![](a.svg)", "nothing"),
        ("<!-- picture: speed result -->\n![](a.svg)", "speed"),
        ("<!-- picture: made result | group: a -->\n![](a.svg)", "group"),
        ("<!-- picture: made differences | method: a -->\n![](a.svg)", "'a'"),
        ("<!-- picture: made result -->\n\n![](a.svg)", ".svg"),
    ],
)
def test_a_marker_that_cannot_be_filled_is_an_error_that_names_page_and_marker(
    folder, capsys, text, named
):
    page = folder / "page.md"
    page.write_text(text)
    assert main(["render", str(page), "--data", str(folder)]) == 2
    error = capsys.readouterr().err
    assert str(page) in error
    assert named in error
    assert page.read_text() == text


# -- the committed pages --------------------------------------------------------------------------


def test_the_tables_of_the_committed_pages_are_what_the_data_give():
    files = render(default_pages(), DATA, has_pictures=False)
    assert outdated(files) == [], "python -m tools.results render"


def test_markers_in_a_block_of_code_are_text(folder):
    marker = "<!-- table: made values -->\n<!-- end -->"
    block = f"```text\n{marker}\n```\n"
    found = rendered(folder, block + marker)
    assert found == block + rendered(folder, marker)
    assert found != block + marker


@pytest.mark.slow  # draws every picture
def test_the_committed_pages_and_pictures_are_what_the_data_give():
    files = render(default_pages(), DATA)
    assert outdated(files) == [], "python -m tools.results render"
    names = {path.name for path in files}
    assert {"front.svg", "lengths.svg", "lengths.md", "README.md"} <= names


def test_the_values_of_a_page_are_those_of_its_runs():
    """Computed here from the JSON alone."""
    study = json.loads((DATA / "digits.json").read_text(encoding="utf-8"))
    page = (ROOT / "results" / "digits.md").read_text(encoding="utf-8")
    base = next(m for m in study["methods"] if m["label"] == "static 8/8")["runs"][0]["bitops"]
    for entry in study["methods"]:
        own = [run["final"]["accuracy"] for run in entry["runs"]]
        low, high = stats.t.interval(0.95, len(own) - 1, stats.tmean(own), stats.sem(own))
        found = re.search(
            rf"\n\| {entry['label']} \| ([\d.]+) ± ([\d.]+) \| (\d+) \| ([\d.]+) to ([\d.]+) "
            r"\| ([\d.]+) \|", page,
        )  # fmt: skip
        mean, std, n, from_, to, cost = map(float, found.groups())
        expected = [stats.tmean(own), stats.tstd(own), low, high]
        assert [mean, std, from_, to] == pytest.approx(expected, abs=0.05)
        assert n == len(own)
        assert cost == pytest.approx(entry["runs"][0]["bitops"] / base, abs=6e-3)


def test_no_result_has_a_path_of_a_machine_and_every_link_leads_somewhere():
    for path in (ROOT / "results").rglob("*"):
        if path.suffix in (".md", ".json"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.<])/(tmp|home|root|work|Users|mnt)/", text), path.name
            for target in re.findall(r"\]\(([^)#:]+)\)", text) if path.suffix == ".md" else ():
                assert (path.parent / target).exists(), (path.name, target)
