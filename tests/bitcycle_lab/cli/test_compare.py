"""bitcycle compare."""

import json

import pytest

from bitcycle_lab.cli.main import main
from tests.bitcycle_lab.study.test_comparison import written


@pytest.fixture
def runs(tmp_path):
    return [
        str(written(tmp_path, 8, 0, 90.0, 200.0)),
        str(written(tmp_path, "CR:3-8:8", 0, 91.0)),
        str(written(tmp_path, 3, 0, None)),
    ]


def test_a_table_of_the_runs(runs, capsys):
    assert main(["compare", *runs]) == 0
    out = capsys.readouterr().out
    assert "+1.00" in out
    assert "0.50" in out
    assert "not finished" in " ".join(out.split())
    assert "precision.forward" in "".join(out.split())


def test_json(runs, capsys):
    assert main(["compare", *runs, "--json"]) == 0
    names = [row["method"] for row in json.loads(capsys.readouterr().out)["runs"]]
    assert names == ["run-8", "run-CR-3-8-8", "run-3"]


def test_the_picture(runs, capsys, tmp_path):
    path = tmp_path / "curves.svg"
    assert main(["compare", *runs, "--output", str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().out
    assert path.stat().st_size > 5_000


def test_the_name_of_the_picture_is_checked_before_anything_is_printed(runs, capsys):
    assert main(["compare", *runs, "--output", "x.pdf"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "x.pdf" in err


def test_a_folder_with_runs_stands_for_them(runs, capsys, tmp_path):
    assert main(["compare", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 3


def test_a_folder_without_a_run_is_one_error_line(tmp_path, capsys):
    assert main(["compare", str(tmp_path)]) == 2
    assert "there is no run in" in capsys.readouterr().err
