"""Range tests on the page."""

import json
from dataclasses import replace

from bitcycle.report.page.range_tests import range_figure, range_tests_section
from bitcycle.report.page.recorded import record

from .made_up import BREAKOUT, Elements, range_curve


def test_the_curve_has_each_precision_its_goal_and_the_switching_point():
    drawn = range_figure(range_curve())
    bold = [t for t in drawn["data"] if t.get("line", {}).get("width") == 2.4]
    assert [t["name"] for t in bold] == ["2 bits", "3 bits"]
    assert bold[1]["x"] == [6, 7, 8, 9, 10, 11]
    [ring] = [t for t in drawn["data"] if t["mode"] == "markers"]
    # start 0.15, threshold 0.2: the mean of two steps is first above 0.35 at step 10
    assert (ring["x"], ring["y"]) == ([10], [0.45])
    assert [note["text"] for note in drawn["layout"]["annotations"]] == ["2 bits", "3"]


def test_tests_of_a_run_of_the_folder_beside_it_and_of_the_study_are_found(made, tmp_path):
    run = made.methods[0].runs[0]
    stored = {"test": {"curve": range_curve().to_dict()}}
    tested = replace(run, result=replace(run.result, range_test=stored))
    methods = (replace(made.methods[0], runs=(tested,)),)
    beside = run.directory.with_name(f"{run.directory.name}-range-test")
    other = replace(range_curve(), threshold=0.3)
    third = replace(range_curve(), threshold=0.9)
    for folder, curve in ((beside, other), (tmp_path / "study", third)):
        folder.mkdir()
        report = {"name": BREAKOUT, "curve": curve.to_dict()}
        (folder / "range-test.json").write_text(json.dumps(report), encoding="utf-8")
    seen = Elements(range_tests_section(record(replace(made, methods=methods)), tmp_path / "study"))
    assert len(seen.data) == 2  # two of one run have one title: the first is shown
    assert "learns from 3 bits on: gains more than 0.2 of accuracy" in seen.text
    assert "no bits gain more than 0.9" in seen.text
    assert "img" not in seen.names()


def test_without_a_test_there_is_no_section(made, tmp_path):
    (tmp_path / "range-test.json").write_text('{"curve": {"bits": 3}}')
    assert range_tests_section(record(made), tmp_path) is None
