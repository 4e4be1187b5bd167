"""bitcycle study: run, status, table, ls; the training itself is tested with the study."""

import json
import os

import pytest
import yaml

import bitcycle_lab.study.engines
from bitcycle_lab.cli.main import main
from bitcycle_lab.study.study_file import study_names
from tests.bitcycle_lab.cli.runs import TINY
from tests.bitcycle_lab.study.small_studies import Here

BASE = {key: value for key, value in TINY.items() if key not in ("threads", "output")}


@pytest.fixture
def engines(monkeypatch, tmp_path):
    """Engines that train in this process, as they were asked for; the current folder is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(2)))
    made = []

    def make_engine(name, **options):
        engine = Here()
        made.append((name, options, engine))
        return engine

    monkeypatch.setattr(bitcycle_lab.study.engines, "make_engine", make_engine)
    return made


@pytest.fixture
def study(tmp_path):
    settings = {
        "name": "mine",
        "base": {**BASE, "precision": {"forward": 8, "backward": 8}},
        "seeds": 1,
        "baseline": "static",
        "methods": {"static": {}, "cycled": {"precision.forward": "CR:3-8:2"}},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return path


def folders(tmp_path):
    return {path.name for path in (tmp_path / "runs").glob("tiny-*")}


def test_run_trains_prints_the_table_and_then_has_nothing_to_do(engines, study, tmp_path, capsys):
    assert main(["study", "run", "mine.yaml"]) == 0
    out = capsys.readouterr().out
    assert "mine: 2 runs: 2 to start; 1 at a time" in out
    assert "runs/studies/mine/table.md" in out
    assert (tmp_path / "runs" / "studies" / "mine" / "table.csv").exists()
    assert len(folders(tmp_path)) == 2
    assert engines[0][:2] == ("local", {"num_jobs": None, "threads": 2, "address": None})
    assert main(["study", "run", "mine.yaml"]) == 0
    assert engines[1][2].started == []
    assert len(engines[0][2].started) == 2


def test_threads_follow_the_jobs_until_a_study_has_begun(engines, study, tmp_path):
    assert main(["study", "run", "mine.yaml", "--jobs", "2", "--quiet"]) == 0
    assert {config.threads for config in engines[0][2].started} == {1}
    assert main(["study", "run", "mine.yaml", "--quiet"]) == 0
    assert engines[1][2].started == []


def test_quiet_prints_a_line_per_finished_run_and_the_table(engines, study, capsys):
    assert main(["study", "run", "mine.yaml", "--quiet"]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("[1/2] static seed 0")
    assert "  accuracy " in second
    assert any(line.split()[:2] == ["cycled", "static"] for line in rest)  # the difference


@pytest.mark.slow
def test_overrides_reach_every_method_and_status_finds_those_runs(engines, study, capsys):
    words = ["--steps", "10", "--seeds", "3", "4", "--optimizer.lr=0.2", "--threads", "2"]
    assert main(["study", "run", "mine.yaml", *words]) == 0
    started = engines[0][2].started
    assert {(c.steps, c.optimizer.lr, c.threads) for c in started} == {(10, 0.2, 2)}
    assert sorted(c.seed for c in started) == [3, 3, 4, 4]
    capsys.readouterr()
    assert main(["study", "status", "mine.yaml"]) == 0
    assert "4 of 4 runs done, below runs" in capsys.readouterr().out
    assert main(["study", "status", "mine.yaml", "--num-seeds", "2"]) == 0
    assert "0 of 4 runs done, below runs" in capsys.readouterr().out
    assert main(["study", "table", "mine.yaml"]) == 0
    assert "table.tex" in capsys.readouterr().out


def test_a_dry_run_prints_and_writes_nothing(engines, study, tmp_path, capsys):
    assert main(["study", "run", "mine.yaml", "--dry-run", "--jobs", "2"]) == 0
    out = capsys.readouterr().out
    assert "to train: 2 runs" in out
    assert "2 at a time; done: 0" in out
    assert "tells from noise" in out
    assert not (tmp_path / "runs").exists()


def test_a_failed_run_is_the_exit_code_and_is_retried_when_asked(engines, study, tmp_path, capsys):
    settings = yaml.safe_load(study.read_text(encoding="utf-8"))
    settings["methods"] = {"crashing": {"swa.start": 100}}
    del settings["baseline"]
    study.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    assert main(["study", "run", "mine.yaml"]) == 1
    out = capsys.readouterr().out
    assert "failed: crashing seed 0: ValueError: swa.start (100)" in out
    assert out.endswith("1 run failed; --retry-failed tries again\n")
    failures = json.loads((tmp_path / "runs" / "studies" / "failures.json").read_text())
    assert len(failures) == 1
    assert main(["study", "run", "mine.yaml"]) == 1
    assert engines[1][2].started == []
    assert main(["study", "run", "mine.yaml", "--retry-failed"]) == 1
    assert len(engines[2][2].started) == 1


def test_runs_without_a_finite_value_have_tables_and_no_picture(engines, study, tmp_path, capsys):
    assert main(["study", "run", "mine.yaml", "--quiet"]) == 0
    folder = tmp_path / "runs" / "studies" / "mine"
    for path in (tmp_path / "runs").glob("tiny-*/result.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored["final"]["accuracy"] = float("nan")
        path.write_text(json.dumps(stored), encoding="utf-8")
    (folder / "table.md").unlink()
    capsys.readouterr()
    assert main(["study", "table", "mine.yaml"]) == 0
    out = capsys.readouterr().out
    assert "no picture: " in out
    assert "finite" in out
    assert "runs/studies/mine/table.md" in out
    assert (folder / "table.md").exists()


def test_a_table_of_nothing_is_an_error(study, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["study", "table", "mine.yaml"]) == 2
    assert "no run of mine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "dmo"], "did you mean 'demo'?"),
        (["run", "digits-cpt-3-8-8"], "digits-cpt-3-8-8"),
        (["run", "mine.yaml", "--output", "mine.yaml"], "--output mine.yaml"),
        (["run", "mine.yaml", "--jobs", "0", "--dry-run"], "--jobs (0)"),
        (["run", "mine.yaml", "--num-seeds", "0"], "--num-seeds (0)"),
        (["rum", "mine.yaml"], "did you mean 'run'?"),
        (["run", "mine.yaml", "--quite", "x"], "did you mean '--quiet'?"),
        (["run", "mine.yaml", "--seed", "3"], "give --seeds 0 1 2"),
        (["run", "mine.yaml", "--step", "3"], "did you mean '--steps'"),
        (["run", "cifar.yaml"], "'cifar10'"),
        (["run", "mine.yaml", "--engine", "rya"], "'rya'"),
        ([], "COMMAND"),
    ],
)
def test_mistakes_are_one_line_and_start_nothing(
    words, message, study, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    cifar = "{name: x, methods: {a: cifar10-resnet8-float32-small}}"
    (tmp_path / "cifar.yaml").write_text(cifar, encoding="utf-8")
    assert main(["study", *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_ls_lists_the_shipped_studies(capsys):
    assert main(["study", "ls", "--json"]) == 0
    assert "demo" in [row["name"] for row in json.loads(capsys.readouterr().out)]


def test_ls_fits_100_columns_where_there_is_no_terminal(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["study", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) > len(study_names()) + 1  # long descriptions are wrapped, not cut
