"""bitcycle report."""

import sys

import pytest

from bitcycle_lab.cli import report
from bitcycle_lab.cli.main import main
from bitcycle_lab.report.figures import layers
from bitcycle_lab.study.study_file import study_names
from tests.bitcycle_lab.report.made_up import made_up_cost, study, write_study


@pytest.fixture
def output(tmp_path, monkeypatch):
    """A study's runs; the study itself is called demo."""
    monkeypatch.setattr(layers, "price_method", lambda method: made_up_cost())
    monkeypatch.setattr("bitcycle_lab.study.results.find_study", lambda name: study(name="demo"))
    write_study(tmp_path / "runs", study(name="demo"))
    return tmp_path / "runs"


def test_a_study_gets_its_page_in_its_folder(output, capsys):
    assert main(["report", "demo", "--runs", str(output)]) == 0
    path = output / "studies" / "demo" / "report.html"
    assert capsys.readouterr().out == f"{path}\n"
    assert "against static 8/8" in path.read_text(encoding="utf-8")


def test_a_folder_of_runs_and_a_single_run_get_theirs(output, capsys):
    assert main(["report", str(output), "--output", str(output / "all.html")]) == 0
    assert (output / "all.html").exists()
    [run, *_] = sorted(output.glob("static*"))
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(run / "report.html")


def test_the_page_is_opened_when_asked(output, monkeypatch):
    opened = []
    monkeypatch.setattr(report.webbrowser, "open", lambda uri: opened.append(uri) or True)
    assert main(["report", "demo", "--runs", str(output), "--open"]) == 0
    assert opened == [(output / "studies" / "demo" / "report.html").as_uri()]


def test_what_is_no_run_and_no_study_is_an_error(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "there is no run in" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder or file" in capsys.readouterr().err
    assert main(["report", "demmo"]) == 2
    assert "did you mean 'demo'?" in capsys.readouterr().err


def test_a_study_that_has_not_begun_names_the_command(tmp_path, capsys):
    assert "demo" in study_names()
    assert main(["report", "demo", "--runs", str(tmp_path)]) == 2
    assert "bitcycle study run demo" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_jinja2_the_extra_is_named_and_nothing_written(output, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", "demo", "--runs", str(output)]) == 1
    assert 'pip install ".[report]"' in capsys.readouterr().err
    assert not (output / "studies" / "demo").exists()


def test_several_targets_are_on_one_page(output, capsys):
    runs = sorted(path.parent for path in output.glob("*/config.yaml"))
    static = [run for run in runs if run.name.startswith("static")]
    others = [run for run in runs if run not in static]
    assert main(["report", str(static[0]), str(others[0])]) == 0
    assert capsys.readouterr().out == f"{output / 'report.html'}\n"
    page = (output / "report.html").read_text(encoding="utf-8")
    assert "2 methods, 2 runs" in page
    target = output.parent / "all.html"
    assert main(["report", str(static[0]), "demo", "--runs", str(output),
                 "--output", str(target)]) == 0  # fmt: skip
    assert f", {len(runs)} runs" in target.read_text(encoding="utf-8")  # a run counts once
    assert main(["report", str(static[0]), str(output / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
