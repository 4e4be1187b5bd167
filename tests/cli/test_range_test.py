"""`bitcycle range-test` from the keyboard's side."""

import json

import pytest

from bitcycle.cli.main import main
from bitcycle.range_test import RangeCurve
from bitcycle.train.run_directory import machine
from tests.cli.runs import write_config

FAST = ["--steps-per-precision", "8", "--window", "3", "--threshold", "2", "--high", "4"]


def test_it_prints_the_table_the_bound_and_what_to_type_next(tmp_path, capsys):
    path = write_config(tmp_path)
    out = tmp_path / "here"
    assert main(["range-test", str(path), *FAST, "--out", str(out), "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    data = json.loads((out / "range-test.json").read_text())
    curve = RangeCurve.from_dict(data["curve"])
    assert str(curve) in shown
    assert curve.precisions == (2, 3, 4)
    assert (data["seed"], data["plan"]["steps_per_precision"]) == (3, 8)
    assert (data["recipe"], data["overrides"]) == (str(path), ["--seed", "3"])
    assert data["machine"] == machine()
    assert f"lower bound: {data['low']} bits\n" in shown
    assert data["forward"] == (f"CR:{data['low']}-4:2" if data["low"] < 4 else "4")
    assert f"bitcycle train {path} --seed 3 --precision.forward {data['forward']}\n" in shown
    assert (out / "range-test.png").stat().st_size > 10_000
    assert "range test  2 bits  step 8/24" in shown


def test_nothing_passed_is_an_error_and_the_files_are_written(tmp_path, capsys):
    path = write_config(tmp_path)
    out = tmp_path / "here"
    arguments = [*FAST, "--threshold", "99", "--out", str(out)]
    assert main(["range-test", str(path), *arguments]) == 1
    shown = capsys.readouterr()
    assert "does not learn at 2 to 4 bits" in shown.err
    assert "next:" not in shown.out
    data = json.loads((out / "range-test.json").read_text())
    assert data["low"] is None
    assert data["bitops"] > 0
    assert f"cost:        {data['bitops']:.3g} BitOPs for 24 steps" in shown.out
    assert (out / "range-test.png").exists()


def test_chance_upper_reset_and_stopping_early_are_taken(tmp_path, capsys):
    path = write_config(tmp_path)
    fast = ["--steps-per-precision", "8", "--high", "4", "--quiet", "--chance", "1"]
    assert main(["range-test", str(path), *fast, "--reset", "--upper"]) == 0
    folder = tmp_path / "runs" / "tiny-seed0-reset-range-test"  # one of its own
    data = json.loads((folder / "range-test.json").read_text())
    assert (data["plan"]["threshold"], data["plan"]["reset"]) == (2, True)
    assert f"upper bound: {data['high']} bits" in capsys.readouterr().out
    assert main(["range-test", str(path), *fast, "--stop-early", "--out", str(tmp_path / "o")]) == 0
    data = json.loads((tmp_path / "o" / "range-test.json").read_text())
    assert data["curve"]["bits"][-1] == data["low"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a recipe"),
        (["digits-float32"], "trains in float32"),
        (["digits-cpt-3-8-8", "--chance", "0"], "chance (0.0) must be greater than 0"),
        (["digits-cpt-3-8-8", "--chance", "1", "--threshold", "1"], "not allowed with"),
        (["digits-cpt-3-8-8", "--low", "9"], "range_test.low (9) must be <= 8"),
        (["digits-cpt-3-8-8", "--steps-per-precision", "3", "--window", "2"], "2 x window"),
        (["digits-cpt-3-8-8", "--upper", "--stop-early"], "drop stop_early"),
        (["digits-cpt-3-8-8", "--optimzer.lr", "1"], "optimizer.lr"),
        (["digits-cpt-3-8-8", "--out", __file__], "is a file; give a folder"),
    ],
)
def test_what_cannot_be_tested_is_a_usage_error(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["range-test", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
