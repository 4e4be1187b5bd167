"""bitcycle study publish."""

import json

import pytest

from bitcycle.cli.main import main
from bitcycle.study.find import find_study
from bitcycle.study.results import read_study
from tests.report.evidence.made import bench_file
from tests.study.made_up import result_of, write_run
from tests.study.publish.made import ALIKE, made

pytest.importorskip("matplotlib")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A study in a file, whose runs are all there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "name: made-up\nbaseline: static 8/8\nseeds: 3\n"
        "base: {model: {name: digits_mlp}, steps: 240, name: run, "
        "precision: {backward: 8}}\n"
        "methods:\n  static 8/8: {precision.forward: 8}\n  CPT: {precision.forward: 'CR:3-8:8'}\n"
    )
    values = made(ALIKE).methods
    empty = read_study(find_study("mine.yaml"), "runs")
    for row, known in zip(empty.methods, values, strict=True):
        for state in row.runs:
            value = known.values.get(state.run.seed)
            write_run(state.run.config, result_of(state.run, state.directory, value, 100.0))
    return tmp_path


def test_a_study_becomes_a_file_a_page_and_a_picture(runs, capsys):
    assert main(["study", "publish", "mine.yaml"]) == 0
    printed = capsys.readouterr().out.split()
    assert sorted(printed) == [
        "results/README.md", "results/data/made-up.json", "results/made-up.md",
        "results/made-up.svg",
    ]  # fmt: skip
    page = (runs / "results" / "made-up.md").read_text()
    assert "within noise" in page


def test_pages_are_made_again_without_the_runs(runs, capsys):
    assert main(["study", "publish", "mine.yaml", "--to", "out"]) == 0
    before = (runs / "out" / "made-up.md").read_bytes()
    (runs / "out" / "made-up.md").unlink()
    capsys.readouterr()
    assert main(["study", "publish", "--render", "out"]) == 0
    assert capsys.readouterr().out.split() == ["out/made-up.md"]
    assert (runs / "out" / "made-up.md").read_bytes() == before


def test_measurements_of_other_commands_become_pages_too(runs, capsys):
    (runs / "speed.json").write_text(json.dumps(bench_file()))
    assert main(["study", "publish", "speed.json", "--to", "out"]) == 0
    assert (runs / "out" / "speed.md").exists()


def test_documents_are_filled(runs, capsys):
    main(["study", "publish", "mine.yaml"])
    (runs / "README.md").write_text("<!-- made: headline -->\n<!-- end -->\n")
    assert main(["study", "publish", "--render", "results", "--fill", "README.md"]) == 0
    assert "[made-up](results/made-up.md)" in (runs / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a study or the files of a measurement"),
        (["digits", "--render", "results"], "give a study or the files of a measurement"),
        (["--render", "nowhere"], "there is no folder nowhere/data"),
        (["gone.json"], "there is no file gone.json"),
        (["digits", "speed.json"], "give one study, or JSON files only"),
        (["digits"], "no run of digits is done below runs"),
        (["digits", "--to", "mine.yaml"], "mine.yaml is a file; give a folder"),
        (["speed.json", "--seeds", "7"], "a page of files does not take --seeds"),
        (["speed.json", "--no.such.key", "9"], "does not take --no.such.key"),
        (["--render", "results", "--steps", "9"], "--render does not take --steps"),
        (["--render", "results", "--to", "other"], "leave out --to"),
    ],
)
def test_what_cannot_be_published_is_one_clear_message(runs, capsys, words, message):
    assert main(["study", "publish", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_document_that_is_not_there_is_said_before_anything_is_written(runs, capsys):
    assert main(["study", "publish", "mine.yaml", "--fill", "gone.md"]) == 2
    assert "--fill gone.md: there is no such file" in capsys.readouterr().err
    assert not (runs / "results").exists()


def test_a_damaged_file_is_one_message(runs, capsys):
    main(["study", "publish", "mine.yaml"])
    path = runs / "results" / "data" / "made-up.json"
    path.write_text(path.read_text().replace('"bitops"', '"bits"'))
    capsys.readouterr()
    assert main(["study", "publish", "--render", "results"]) == 2
    assert "results/data/made-up.json is damaged (KeyError: 'bitops')" in capsys.readouterr().err
