"""A study's picture."""

import pytest

from bitcycle.report import plot
from bitcycle.report.study import save_study
from tests.study.made_up import method, study_result

pytest.importorskip("matplotlib")

BASE = {0: 90.0, 1: 91.0, 2: 92.0}


def entries(num_seeds=3):
    def first(values):
        return {seed: values[seed] for seed in range(num_seeds)}

    return [
        (method("static", 8), first(BASE), 200.0),
        (method("CPT", "CR:3-8:8", at=5), first({0: 91.0, 1: 93.0, 2: 95.0}), 100.0),
        (method("low", 3, at=9), first({0: 80.0, 1: 81.0, 2: 85.0}), 50.0),
    ]


@pytest.mark.parametrize(
    ("kind", "num_seeds", "num_panels"),
    [("comparison", 3, 2), ("comparison", 2, 1), ("comparison", 1, 1), ("suite", 3, 1),
     ("critical-periods", 3, 1)],
)  # fmt: skip
def test_each_kind_has_its_panels(kind, num_seeds, num_panels):
    figure = plot(study_result(entries(num_seeds), baseline="static", kind=kind))
    assert len(figure.axes) == num_panels


def test_every_group_with_a_run_has_a_row():
    two = [
        (method("static", 8, group="one"), BASE, 2.0),
        (method("CPT", "CR:3-8:8", group="one"), BASE, 1.0),
        (method("static", 8, group="two", changes={"steps": 9}), BASE, 2.0),
        (method("static", 8, group="not begun", changes={"steps": 8}), {}, 2.0),
    ]
    figure = plot(study_result(two, baseline="static"))
    titles = [axes.get_title(loc="left").partition("\n")[0] for axes in figure.axes]
    assert titles == ["one", "one", "two", "two"]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["static", "CPT"]


def test_a_study_without_a_run_has_no_picture():
    with pytest.raises(ValueError, match="has no finished run to draw; start it with: bitcycle"):
        plot(study_result([(method("a", 8), {}, 1.0)]))


def test_png_and_svg_are_saved(tmp_path):
    paths = save_study(study_result(entries(), baseline="static", output=tmp_path))
    assert [path.name for path in paths] == ["picture.png", "picture.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in paths[1].read_bytes()
