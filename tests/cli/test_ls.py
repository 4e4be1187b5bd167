"""bitcycle ls."""

import json
import re
import shutil

import pytest

from bitcycle.cli.ls import KINDS, table
from bitcycle.cli.main import main
from bitcycle.data import DATASETS
from bitcycle.models import MODELS
from bitcycle.recipes import list_recipes
from tests.cli.runs import write_config


@pytest.mark.parametrize("kind", [name for name in KINDS.names() if name != "runs"])
def test_every_kind_lists_something(kind, capsys):
    assert main(["ls", kind]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_schedules_come_with_cost_example_and_one_line(capsys):
    assert main(["ls", "schedules", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["CR"]["cost"] == "medium"
    assert rows["CR"]["example"] == "CR:3-8:32"
    assert "CPT" in rows["CR"]["what"]


def test_layers_are_listed_under_their_float_type(capsys):
    assert main(["ls", "layers", "--json"]) == 0
    rows = {row["float type"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["torch.nn.modules.linear.Linear"]["converted"] == "QuantizedLinear"


def test_quantizers_are_listed_by_name(capsys):
    assert main(["ls", "quantizers", "--json"]) == 0
    assert "sbm" in [row["name"] for row in json.loads(capsys.readouterr().out)]


def rows_of(kind, capsys):
    assert main(["ls", kind, "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_models_come_with_the_kind_of_data_they_take(capsys):
    rows = rows_of("models", capsys)
    assert list(rows) == MODELS.names()
    assert rows["resnet74"]["kind"] == "image"
    assert rows["lstm_lm"]["kind"] == "language"
    assert all(row["what"] for row in rows.values())


def test_datasets_come_with_the_files_that_are_expected(capsys):
    rows = rows_of("datasets", capsys)
    assert list(rows) == DATASETS.names()
    assert "cifar-100-binary/{train,test}.bin" in rows["cifar100"]["what"]


def test_recipes_come_with_what_was_published(capsys):
    rows = rows_of("recipes", capsys)
    assert list(rows) == [info.name for info in list_recipes()]
    assert rows["cifar100-resnet74-cpt-3-8-8"]["published"] == "72.35"  # CPT, Table 2
    assert rows["digits-absmax-8-8"]["forward / backward"] == "8 / 8, absmax"
    assert rows["digits-clr-8-8"]["note"] == "cyclic learning rate"
    for info in list_recipes():
        assert re.fullmatch(r"float32|\S+( \(.*\))? / \S+( \w+)?", info.bits)


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["table8", "STATIC"], 2),
        (["fig.5", "110"], 4),
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
    ("words", "named"), [(["citeser"], "citeseer"), (["ptb", "resnet18"], "ptb and resnet18")]
)
def test_words_that_no_recipe_contains_are_an_error(words, named, capsys):
    assert main(["ls", "recipes", *words]) == 2
    assert named in capsys.readouterr().err


def test_without_a_kind_the_kinds_are_listed(capsys):
    assert main(["ls"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "required: KIND;" in captured.err
    assert "WORD" not in captured.err.partition("required")[2]
    lines = captured.err.splitlines()[-len(KINDS.names()) :]
    assert [line.split()[0] for line in lines] == KINDS.names()


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


def test_only_recipes_and_runs_take_words(capsys):
    assert main(["ls", "models", "somewhere"]) == 2
    assert "only recipes and runs take words" in capsys.readouterr().err
    assert main(["ls", "runs", "here", "there"]) == 2
    assert "below one folder" in capsys.readouterr().err


def test_an_unknown_kind_names_the_known_ones(capsys):
    assert main(["ls", "schedule"]) == 2
    assert "did you mean 'schedules'?" in capsys.readouterr().err


def test_the_last_column_wraps_to_the_width():
    rows = [{"name": "a", "what": "one two three four five six seven"}]
    assert table(rows, width=30).splitlines() == [
        "name  what",
        "a     one two three four five",
        "      six seven",
    ]


def test_formats_come_with_elements_blocks_and_the_largest_value(capsys):
    rows = rows_of("formats", capsys)
    assert list(rows)[0] == "bf16"
    assert rows["nvfp4"] == {
        "name": "nvfp4", "element": "e2m1", "bits": "4", "block": "16", "largest": "6",
        "what": "an e4m3 scale per 16 and a float32 scale per tensor",
    }  # fmt: skip
    assert [rows[name]["what"] for name in ("bf16", "fp8", "mxfp4")] == [
        "no scale", "a float32 scale per tensor", "a power of two per 32",
    ]  # fmt: skip
    assert main(["ls", "formats"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
    assert (rows["fp8"]["block"], rows["fp8"]["largest"]) == ("-", "448")
    assert rows["mxfp8"]["block"] == "32"
