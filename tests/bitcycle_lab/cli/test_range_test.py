"""`bitcycle range-test` from the keyboard's side."""

import json
from dataclasses import fields

import pytest

from bitcycle.range_criteria import RangeTest, RangeTestConfig
from bitcycle_lab.cli.main import main
from bitcycle_lab.train.run_directory import machine
from tests.bitcycle_lab.cli.runs import write_config

FAST = ["--steps-per-precision", "8", "--window", "3", "--threshold", "2", "--high", "4"]


def test_it_prints_the_table_the_bound_and_what_to_type_next(tmp_path, capsys):
    path = write_config(tmp_path)
    out = tmp_path / "here"
    assert main(["range-test", str(path), *FAST, "--out", str(out), "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    data = json.loads((out / "range-test.json").read_text())
    test = RangeTest.from_dict(data["test"])
    assert str(test) in shown
    assert min(test.verdicts) == 2
    assert (data["seed"], test.settings.steps_per_precision) == (3, 8)
    assert (data["recipe"], data["overrides"]) == (str(path), ["--seed", "3"])
    assert data["machine"] == machine()
    assert data["forward"] == (f"CR:{data['low']}-4:2" if data["low"] < 4 else "4")
    assert f"bitcycle train {path} --seed 3 --precision.forward {data['forward']}\n" in shown
    assert f"cost:        {data['steps']} steps (" in shown
    assert (out / "range-test.png").stat().st_size > 10_000
    assert "range test  2 bits  accuracy" in shown


def test_nothing_passed_is_an_error_and_the_files_are_written(tmp_path, capsys):
    path = write_config(tmp_path)
    out = tmp_path / "here"
    assert main(["range-test", str(path), *FAST, "--threshold", "99", "--out", str(out)]) == 1
    shown = capsys.readouterr()
    assert "2 to 4 bits" in shown.err
    assert "next:" not in shown.out
    data = json.loads((out / "range-test.json").read_text())
    assert (data["low"], data["steps"]) == (None, 24)
    assert data["bitops"] > 0
    assert (out / "range-test.png").exists()


def test_by_default_it_is_the_relative_criterion_in_the_recipes_output(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, output="runs", steps=240)
    assert main(["range-test", "tiny.yaml", "--steps-per-precision", "24"]) == 0
    shown = capsys.readouterr().out
    folder = tmp_path / "runs" / "tiny-seed0-range-test"
    data = json.loads((folder / "range-test.json").read_text())
    test = RangeTest.from_dict(data["test"])
    assert (test.settings.criterion, data["low"]) == ("relative", test.low)
    assert str(test) in shown
    assert (data["steps"], data["run_steps"]) == (test.num_steps, 240)
    assert "24 steps per precision, 10 % of the run's 240" in shown
    assert (folder / "range-test.png").stat().st_size > 10_000


def test_a_loss_that_does_not_fall_asks_for_more_steps_and_the_files_are_written(tmp_path, capsys):
    path = write_config(tmp_path)
    out = tmp_path / "here"
    arguments = ["--steps-per-precision", "8", "--optimizer.lr", "1e-9", "--out", str(out)]
    assert main(["range-test", str(path), *arguments]) == 1
    shown = capsys.readouterr()
    assert "more steps per precision" in shown.err
    assert "cost:        8 steps (" in shown.out  # fewer bits were not tried
    assert json.loads((out / "range-test.json").read_text())["low"] is None
    assert (out / "range-test.png").exists()


def test_every_setting_is_an_option_and_options_win_over_keys(tmp_path):
    path, out = write_config(tmp_path), tmp_path / "o"
    given = {"low": 3, "high": 4, "steps_per_precision": 8, "window": 4, "share": 0.2, "repeats": 1,
             "careful_below": 3}  # fmt: skip
    options = [
        word
        for name, value in {"criterion": "relative", **given}.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    main(["range-test", str(path), *options, "--quiet", "--out", str(out), "--range_test.low=2"])
    settings = json.loads((out / "range-test.json").read_text())["test"]["settings"]
    assert settings == {"criterion": "relative", **given, "threshold": None}
    assert settings.keys() == {field.name for field in fields(RangeTestConfig)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a recipe"),
        (["digits-float32"], "trains in float32"),
        (["digits-cpt-3-8-8", "--low", "9"], "low (9)"),
        (["digits-cpt-3-8-8", "--high", "1"], "low (2) must be <= high (1)"),
        (["digits-cpt-3-8-8", "--share", "0.2", "--threshold", "1"], "share (0.2) is for"),
        (["digits-cpt-3-8-8", "--repeats", "2", "--threshold", "1"], "repeats (2) is for"),
        (["digits-cpt-3-8-8", "--reset", "1"], "--print-config"),  # no option is near
        (["digits-cpt-3-8-8", "--range_test.criterion", "paper", "--share", "0.7"], "share (0.7)"),
        (["digits-cpt-3-8-8", "--quit"], "did you mean '--quiet'?"),
        (["digits-cpt-3-8-8", "--lo", "2"], "did you mean '--low'?"),
        (["digits-cpt-3-8-8", "--steps-per-precision", "3", "--window", "2"], "2 x window"),
        (["digits-cpt-3-8-8", "--optimzer.lr", "1"], "optimizer.lr"),
        (["digits-cpt-3-8-8", "--out", __file__], "is a file; give a folder"),
    ],
)
def test_what_cannot_be_tested_is_a_usage_error(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["range-test", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
