"""Pages from data files: the same bytes every time, and a tampered number shows."""

import json
import math

import pytest

from bitcycle.report.evidence.render import (
    add_data,
    gather_files,
    render_folder,
    write_folder,
)
from tests.report.evidence.made import bench_file, memory_file
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
