"""bitcycle ls."""

import json
import re
import shutil

import pytest

from bitcycle.cli.ls import KINDS, recipe_text, table
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
    assert "72.35" in rows["cifar100-resnet74-cpt-3-8-8"]["published"]  # CPT, Table 2
    assert rows["digits-cpt-3-8-8"]["scale"] == "small"


def test_words_filter_recipes_in_both_forms(capsys):
    assert main(["ls", "recipes", "table8", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 7  # six cells and their base recipe
    assert main(["ls", "recipes", "table 8"]) == 0
    text = capsys.readouterr().out
    assert all(row["name"] in text for row in rows)
    assert "digits" not in text


def titles(text):
    return [line for line in text.splitlines() if line and not line.startswith(" ")]


@pytest.mark.parametrize("width", [None, 100])
def test_all_recipes_come_in_groups_that_fit_a_terminal(width):
    text = recipe_text([], is_all=True, width=width)
    assert max(map(len, text.splitlines())) <= 100
    assert "..." not in text
    about, small, with_files, table1, *_ = titles(text)
    assert about.startswith("(base): ")
    assert small.startswith("small: ")
    assert with_files.startswith("small, own data: ")
    assert table1.startswith("CPT Table 1: ")
    for info in list_recipes():
        assert f"  {info.name} " in text


def test_a_narrow_terminal_cuts_lines_but_no_name():
    text = recipe_text([], is_all=True, width=30)
    assert all(re.search(rf"  {re.escape(i.name)}(\s|\.\.\.)", text) for i in list_recipes())


def test_without_words_a_table_is_one_line_that_says_how_to_list_it(capsys):
    assert main(["ls", "recipes"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert len(lines) <= 130
    assert max(map(len, lines)) <= 100
    for info in list_recipes():
        is_shown = info.scale == "small" or info.cycles is not None
        assert (f"  {info.name} " in text) == is_shown
    rows = [line for line in lines if "bitcycle ls recipes " in line]
    assert len(rows) == 10
    for row in rows:
        name, number, subject, command = re.split(" {2,}", row.strip())
        assert main(command.split()[1:]) == 0
        listed = capsys.readouterr().out
        assert f"\n{name}: {subject}" in listed
        assert sum(f"\n  {info.name} " in listed for info in list_recipes()) == int(number)
    assert main(["ls", "recipes", "--all"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == recipe_text([], is_all=True)


def test_only_recipes_take_all(capsys):
    assert main(["ls", "models", "--all"]) == 2
    assert "--all is for recipes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], "train digits --precision.forward CR:3-8:8 --precision.backward 8"),
        (["resnet8"], "train cifar10-resnet8 --precision.forward CR:3-8:8 --precision.backward 8"),
        (["table4", "resnet34"], "train imagenet-resnet34 --precision.forward CR:8-32:32"),
        (["xnli"], "train xnli-mbert --precision.forward CR:3-8:2 --precision.backward 8"),
        (["resnet74", "dorefa", "8-8"], "train cifar10-resnet74-dorefa-8-8 --data.root DIR"),
    ],
)
def test_the_last_lines_train_a_recipe_of_the_list(words, command):
    text = recipe_text(words)
    listed, _, example = text.partition("Train a recipe")
    assert command in " ".join(example.replace("\\", "").split())
    assert f"\n  {command.split()[1]} " in listed
    assert ("(base): " in text) == ("--precision.forward" in command)


def test_bits_are_always_shown_and_other_settings_are_notes():
    lines = {line.split()[0]: line for line in recipe_text(["digits"]).splitlines() if line}
    assert lines["digits-absmax-8-8"].endswith("8 / 8, absmax")
    assert lines["digits-cpt-3-8-8-start60"].endswith("delay@0.375(CR:3-8:8) / 8")
    assert re.search(r"  8 / 8 +cyclic learning rate$", lines["digits-clr-8-8"])
    for info in list_recipes():
        assert re.fullmatch(r"float32|\S+( \(.*\))? / \S+( \w+)?", info.bits)


def test_without_a_kind_the_kinds_are_listed(capsys):
    assert main(["ls"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "required: KIND;" in captured.err
    assert "WORD" not in captured.err.partition("required")[2]
    lines = captured.err.splitlines()[-len(KINDS.names()) :]
    assert [line.split()[0] for line in lines] == KINDS.names()


def test_a_word_that_no_recipe_contains_is_an_error(capsys):
    assert main(["ls", "recipes", "citeser"]) == 2
    assert "did you mean citeseer?" in capsys.readouterr().err


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
