"""bitcycle demo: what it prints and leaves behind; the training itself is tested with the study."""

import re
import shlex
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import bitcycle_lab.report.page
import bitcycle_lab.study.demo
from bitcycle_lab.cli.demo import DRAWING, NEEDED
from bitcycle_lab.cli.main import main
from tests.bitcycle_lab.report.made_up import demo_result

ROOT = Path(__file__).parents[3]


@pytest.fixture
def calls(monkeypatch):
    """The demo without its training."""
    made = []

    def run_demo(output, *, num_seeds, num_jobs, say):
        made.append((str(output), num_seeds, num_jobs))
        output.mkdir(parents=True, exist_ok=True)
        say("[1/1] a run")
        return demo_result()

    def write_page(result, path, *, cards):
        path.write_text("page", encoding="utf-8")
        return path

    monkeypatch.setattr(bitcycle_lab.study.demo, "run_demo", run_demo)
    monkeypatch.setattr(bitcycle_lab.report.page, "write_page", write_page)
    return made


def test_it_prints_the_table_says_what_to_type_next_and_ends_with_the_page(
    calls, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    assert calls == [("runs/demo", 3, 2)]
    out = capsys.readouterr().out
    assert out.startswith("[1/1] a run\n")
    assert str(demo_result()) in out
    assert (tmp_path / "runs" / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "runs/demo/demo.png" in out
    assert out.endswith("page:    runs/demo/demo.html\n")
    assert (tmp_path / "runs" / "demo" / "demo.html").exists()


def test_without_matplotlib_there_is_everything_but_picture_and_page(
    calls, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    assert main(["demo", "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert str(demo_result()) in out
    assert 'pip install ".[report]"' in out
    assert list(tmp_path.iterdir()) == []


def test_every_command_it_names_works(calls, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    named = [line.removeprefix("next:").strip() for line in lines if " bitcycle " in line]
    commands = [shlex.split(line.partition("  ")[0]) for line in named]
    assert [command[1] for command in commands] == ["train", "schedule", "bench", "study"]
    quick = {"train": ["--print-config"], "bench": ["--quick", "--repeats", "1"]}
    for _, *argv in commands:
        assert main([*argv, *quick.get(argv[0], [])]) == 0


def test_options_are_handed_on(calls, tmp_path):
    assert main(["demo", "--output", str(tmp_path), "--seeds", "1", "--jobs", "4"]) == 0
    assert calls == [(str(tmp_path), 1, 4)]


@pytest.mark.parametrize("words", [["--output", "file"], ["--output", "new", "--seeds", "0"]])
def test_a_bad_option_is_an_error_before_anything_is_created(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["demo", *words]) == 2
    assert words[-2].strip("-") in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("module", NEEDED)
def test_without_a_package_that_its_runs_need_none_starts(
    calls, module, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["demo", "--output", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert repr(module) in line
    assert 'pip install ".[train]"' in line
    assert calls == []


def test_it_checks_packages_of_the_extras_that_it_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = packages_distributions()
    for modules, extra in ((NEEDED, "train"), (DRAWING, "report")):
        listed = {re.match(r"[\w-]+", line)[0].lower() for line in extras[extra]}
        for module in modules:
            assert {name.lower() for name in names[module]} & listed, module
