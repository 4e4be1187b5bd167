"""bitcycle ls."""

import json
import shutil
from dataclasses import MISSING, fields, replace

import pytest

from bitcycle.quantizers import QUANTIZERS, AbsMax
from bitcycle_lab.cli.ls import KINDS
from bitcycle_lab.cli.main import main
from bitcycle_lab.data import DATASETS, DatasetInfo
from bitcycle_lab.listing import read_entries
from bitcycle_lab.models import MODELS
from bitcycle_lab.recipes import list_recipes
from tests.bitcycle_lab.cli.runs import write_config


@pytest.mark.parametrize("kind", [name for name in KINDS.names() if name != "runs"])
def test_every_kind_lists_something(kind, capsys):
    assert main(["ls", kind]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_rows_are_the_registered_names_with_what_they_are(capsys):
    rows = {}
    for kind in ("schedules", "layers", "quantizers", "models", "datasets", "recipes", "formats"):
        assert main(["ls", kind, "--json"]) == 0
        key = "float type" if kind == "layers" else "name"
        rows[kind] = {row[key]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows["quantizers"]) == QUANTIZERS.names()
    assert list(rows["models"]) == MODELS.names()
    assert list(rows["datasets"]) == DATASETS.names()
    assert list(rows["recipes"]) == [info.name for info in list_recipes()]
    assert rows["schedules"]["CR"]["example"] == "CR:3-8:32"
    assert rows["layers"]["torch.nn.modules.linear.Linear"]["converted"] == "QuantizedLinear"
    assert rows["models"]["lstm_lm"]["kind"] == "language"
    assert rows["recipes"]["cifar100-resnet74-cpt-3-8-8"]["published"] == "72.35"  # CPT, Table 2
    assert rows["recipes"]["digits-absmax-8-8"]["forward / backward"] == "8 / 8, absmax"
    nvfp4 = rows["formats"]["nvfp4"]
    assert (nvfp4["element"], nvfp4["block"], nvfp4["largest"]) == ("e2m1", "16", "6")


def test_the_source_of_a_package_says_what_importing_it_registers():
    models = read_entries("bitcycle_lab.models", "register_model")
    assert list(models) == MODELS.names()
    for name, entry in MODELS.items():
        assert models[name].summary == entry.description
        assert models[name].parameters == tuple(entry.options)

    datasets = read_entries("bitcycle_lab.data", "dataset")
    assert list(datasets) == DATASETS.names()
    defaults = {each.name: each.default for each in fields(DatasetInfo)}
    defaults = {name: value for name, value in defaults.items() if value is not MISSING}
    for name, info in DATASETS.items():
        assert {**defaults, **datasets[name].arguments, "load": info.load} == vars(info)


def test_what_user_code_registers_is_listed_too(monkeypatch, capsys):
    class Mine(AbsMax):
        """A rule of mine."""

    added = {
        "quantizers": (QUANTIZERS, Mine),
        "models": (MODELS, replace(MODELS["lstm_lm"], description="A net of mine.")),
        "datasets": (DATASETS, replace(DATASETS["cora"], description="A graph of mine")),
    }
    kinds = {"models": "language", "datasets": "graph"}
    for kind, (registry, item) in added.items():
        monkeypatch.setitem(registry._entries, "mine", item)
        assert main(["ls", kind, "--json"]) == 0
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
        assert list(rows) == registry.names()
        assert "of mine" in rows["mine"]["what"]
        assert rows["mine"].get("kind") == kinds.get(kind)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["table8", "STATIC"], 2),
        (["fig5", "110"], 4),
        (["Table 8", "static"], 2),
        (["figure", "5", "110"], 4),
        (["lstm_lm", "ptb"], 6),  # by its model
        (["ogbn-arxiv"], 1),  # by its data
        (["sage", "cora"], 4),
    ],
)
def test_all_words_must_occur_in_name_table_model_or_data(words, number, capsys):
    assert main(["ls", "recipes", *words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == number
    assert main(["ls", "recipes", *words]) == 0
    text = capsys.readouterr().out
    assert all(row["name"] in text for row in rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "KIND"),
        (["schedule"], "'schedules'"),
        (["recipes", "citeser"], "citeseer"),
        (["recipes", "ptb", "resnet18"], "ptb and resnet18"),
        (["models", "somewhere"], "words"),
        (["runs", "here", "there"], "one folder"),
    ],
)
def test_a_wrong_word_is_an_error(words, message, capsys):
    assert main(["ls", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


@pytest.fixture
def runs(tmp_path, monkeypatch, capsys):
    """A finished run, one that stopped before its end, and one whose result is damaged."""
    monkeypatch.chdir(tmp_path)
    config = str(write_config(tmp_path))
    assert main(["train", config, "--quiet"]) == 0
    finished = tmp_path / "runs" / "tiny-seed0"
    stopped = shutil.copytree(finished, tmp_path / "runs" / "deeper" / "stopped")
    (stopped / "result.json").unlink()
    shutil.rmtree(stopped / "checkpoints" / "step-00000012")
    damaged = shutil.copytree(finished, tmp_path / "runs" / "damaged")
    (damaged / "result.json").write_text("{")
    capsys.readouterr()
    return tmp_path / "runs"


@pytest.mark.parametrize("argv", [["ls", "runs"], ["ls", "runs", "runs"]])
def test_runs_are_listed_with_their_state_and_result(argv, runs, capsys):
    assert main(argv) == 0
    value = json.loads((runs / "tiny-seed0" / "result.json").read_text())["final"]["accuracy"]
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()[1:]]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert rows == [
        ["runs/damaged", "result.json is damaged", "12", "-"],
        ["runs/deeper/stopped", "not finished", "9", "-"],
        ["runs/tiny-seed0", "finished", "12", f"accuracy {value:.2f} at w8a8"],
    ]


def test_no_runs_are_said_to_be_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["ls", "runs"]) == 0
    assert capsys.readouterr().out == "no runs below runs\n"
    assert main(["ls", "runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
