"""Pages from data files: the same bytes every time, and a tampered number shows."""

import json
import math

import pytest

from bitcycle.report.evidence.landscapes import gather_landscapes
from bitcycle.report.evidence.range_tests import gather_range_tests
from bitcycle.report.evidence.render import (
    add_data,
    gather_files,
    publish,
    render_folder,
    write_folder,
)
from bitcycle.report.evidence.speed import gather_speed
from tests.report.evidence.made import bench_file, landscape_file, memory_file, range_file
from tests.study.publish.made import ALIKE, BETTER, data_of, made

pytest.importorskip("matplotlib")


@pytest.fixture
def folder(tmp_path):
    add_data(tmp_path, "made-up", data_of(made(ALIKE)))
    write_folder(tmp_path)
    return tmp_path


def test_all_pages_come_from_the_data_files(folder):
    names = {path.name for path in folder.iterdir()}
    assert names == {"data", "README.md", "made-up.md", "made-up.svg"}
    assert render_folder(folder) == {name: (folder / name).read_text() for name in names - {"data"}}


def test_a_second_time_changes_nothing(folder):
    assert write_folder(folder) == []


def test_no_date_is_in_the_picture(folder):
    text = (folder / "made-up.svg").read_text()
    assert "dc:date" not in text
    assert "bitcycle, matplotlib" in text


def test_a_tampered_number_is_noticed(folder):
    path = folder / "data" / "made-up.json"
    data = json.loads(path.read_text())
    data["methods"][1]["runs"][0]["final"]["accuracy"] = 99.0
    path.write_text(json.dumps(data))
    changed = {path.name for path in write_folder(folder)}
    assert changed == {"README.md", "made-up.md", "made-up.svg"}


def test_a_hand_written_edit_is_lost(folder):
    page = folder / "made-up.md"
    page.write_text(page.read_text().replace("within noise", "clearly better"))
    assert write_folder(folder) == [page]
    assert "clearly better" not in page.read_text()


def test_other_kinds_are_listed_on_the_first_page(folder):
    for name, data in (("speed", bench_file()), ("memory", memory_file())):
        path = folder / f"{name}-raw.json"
        path.write_text(json.dumps(data))
        add_data(folder, *gather_files([path]))
    write_folder(folder)
    text = (folder / "README.md").read_text()
    assert "- [Speed of a training step](speed.md): Of 4 measured variants" in text
    assert "(memory.md)" in text


def test_files_that_are_nothing_we_know_are_named(tmp_path):
    odd, good = tmp_path / "odd.json", tmp_path / "good.json"
    odd.write_text("{}")
    good.write_text(json.dumps(memory_file()))
    with pytest.raises(ValueError, match=r"odd\.json is none of: speed, memory"):
        gather_files([odd])
    speed = tmp_path / "speed.json"
    speed.write_text(json.dumps(bench_file()))
    with pytest.raises(ValueError, match=r"several kinds \(speed, memory\)"):
        gather_files([speed, good])


def test_a_damaged_data_file_is_named(folder):
    add_data(folder, "speed", {"kind": "speed"})
    with pytest.raises(ValueError, match=r"speed\.json is damaged .*publish it again"):
        render_folder(folder)
    add_data(folder, "speed", {"kind": "taste"})
    with pytest.raises(ValueError, match="has the kind 'taste'; known: study, speed"):
        render_folder(folder)


def test_a_study_without_a_finished_run_has_a_page_without_a_picture(tmp_path):
    add_data(tmp_path, "made-up", data_of(made({}, {})))
    files = render_folder(tmp_path)
    assert set(files) == {"made-up.md", "README.md"}
    assert "No run is done" in files["made-up.md"]


def test_curves_are_drawn_where_runs_have_some(tmp_path):
    data = data_of(made(BETTER))
    for method in data["methods"]:
        for run in method["runs"]:
            run["curve"] = [[step, 80.0 + step / 30] for step in (80, 160, 240)]
    add_data(tmp_path, "made-up", data)
    files = render_folder(tmp_path)
    assert "made-up-curves.svg" in files
    assert "(made-up-curves.svg)" in files["made-up.md"]


def test_a_file_under_another_name_is_an_error(folder):
    data = folder / "data"
    (data / "made-up.json").rename(data / "other.json")
    with pytest.raises(ValueError, match=r"other\.json is of the study 'made-up'"):
        render_folder(folder)


@pytest.mark.parametrize("name", ["README", "speed", "studies"])
def test_a_study_cannot_take_the_page_of_something_else(tmp_path, name):
    with pytest.raises(ValueError, match=f"cannot be published as '{name}'"):
        add_data(tmp_path, name, data_of(made(ALIKE, name=name)))
    assert list(tmp_path.iterdir()) == []


def test_values_that_are_not_finite_leave_the_picture_and_stay_in_the_table(tmp_path):
    inf = dict.fromkeys(range(3), math.inf)
    add_data(tmp_path, "made-up", data_of(made(inf)))
    files = render_folder(tmp_path)
    assert "made-up.svg" in files
    assert "cannot tell: a value is not finite" in files["made-up.md"]
    add_data(tmp_path, "made-up", data_of(made(inf, inf)))
    assert "made-up.svg" not in render_folder(tmp_path)


def test_a_page_written_by_hand_is_not_replaced(folder):
    (folder / "README.md").write_text("# My project, by hand\n")
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    with pytest.raises(ValueError, match=r"README\.md was not made by bitcycle.*another folder"):
        publish(folder, "speed", gather_speed([bench_file()]))
    with pytest.raises(ValueError, match=r"README\.md was not made by bitcycle"):
        write_folder(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


def test_what_cannot_be_shown_is_not_added(folder):
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    with pytest.raises(ValueError, match=r"speed\.json is damaged"):
        publish(folder, "speed", {"kind": "speed"})
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


def test_two_pages_cannot_have_one_picture(tmp_path):
    data = data_of(made(BETTER, name="x"))
    for method in data["methods"]:
        for run in method["runs"]:
            run["curve"] = [[step, 80.0 + step / 30] for step in (80, 160, 240)]
    add_data(tmp_path, "x", data)
    add_data(tmp_path, "x-curves", data_of(made(ALIKE, name="x-curves")))
    with pytest.raises(ValueError, match=r"both have a file x-curves\.svg"):
        render_folder(tmp_path)


def test_range_tests_are_added_to_those_that_are_there(folder):
    for files in ([range_file(0)], [range_file(1)], [range_file(1, passes=False)]):
        publish(folder, "range-tests", gather_range_tests(files))
    tests = json.loads((folder / "data" / "range-tests.json").read_text())["tests"]
    assert [(test["seed"], test["low"]) for test in tests] == [(0, 3), (1, None)]


def test_surfaces_are_added_to_those_that_are_there(folder):
    for steep in (1.0, 2.0):
        publish(folder, "landscapes", gather_landscapes([landscape_file("static", 0, steep)]))
    publish(folder, "landscapes", gather_landscapes([landscape_file("cpt", 0, 1.0)]))
    items = json.loads((folder / "data" / "landscapes.json").read_text())["items"]
    assert [item["method"] for item in items] == ["static", "cpt"]
    assert "differs by -1.07" in (folder / "landscapes.md").read_text()


DAMAGES = {
    "range-test": lambda: {**range_file(), "curve": {}},
    "landscape": lambda: {**landscape_file("a", 0, 1.0), "losses": None},
    "bench": lambda: bench_file(rows=[{**bench_file()["rows"][0], "seconds": None}]),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_measurement_is_named(tmp_path, kind):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(DAMAGES[kind]()))
    with pytest.raises(ValueError, match=r"\(in .*found\.json\); measure again"):
        gather_files([path])


@pytest.mark.parametrize(
    ("key", "value"), [("seconds", None), ("state", "dne"), ("bitops", "many")]
)
def test_a_damaged_run_of_a_study_is_named(folder, key, value):
    path = folder / "data" / "made-up.json"
    data = json.loads(path.read_text())
    data["methods"][0]["runs"][0][key] = value
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"made-up\.json is damaged"):
        render_folder(folder)


@pytest.mark.parametrize("changes", [{"tests": []}, {"threshold": -1.0}, {"metric": [1.0]}])
def test_damaged_range_tests_are_named(folder, changes):
    data = gather_range_tests([range_file()])
    (test,) = data["tests"]
    if "threshold" in changes:
        test["plan"] = {**test["plan"], **changes}
    elif "metric" in changes:
        test.update(changes)
    else:
        data.update(changes)
    add_data(folder, "range-tests", data)
    with pytest.raises(ValueError, match=r"range-tests\.json is damaged"):
        render_folder(folder)


def test_values_that_exploded_are_shown_in_powers_of_ten(tmp_path):
    huge = {0: math.exp(65), 1: math.exp(700), 2: 100.0}
    add_data(tmp_path, "made-up", data_of(made(huge, dict.fromkeys(range(3), math.exp(700)))))
    assert "e+303" in render_folder(tmp_path)["made-up.md"]
