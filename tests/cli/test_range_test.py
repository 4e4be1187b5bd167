"""`bitcycle range-test` from the keyboard's side."""

import json

import pytest

from bitcycle.cli.main import main
from bitcycle.range_curves import RangeCurve, RelativeCurve
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
    assert "cost:        24 steps (" in shown.out
    assert f" % of the run's), {data['bitops']:.3g} BitOPs (" in shown.out
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


def test_by_default_it_is_the_relative_criterion_within_100_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, output="runs", steps=240)
    assert main(["range-test", "tiny.yaml", "--steps-per-precision", "24"]) == 0
    shown = capsys.readouterr().out
    folder = tmp_path / "runs" / "tiny-seed0-range-test"
    data = json.loads((folder / "range-test.json").read_text())
    curve = RelativeCurve.from_dict(data["curve"])
    assert (data["plan"]["criterion"], data["low"]) == ("relative", curve.lower_bound)
    assert str(curve) in shown
    assert "not needed" in shown
    cost = data["cost"]
    assert (cost["steps"], cost["run_steps"]) == (curve.num_steps, 240)
    assert cost["run_bitops"] > cost["bitops"] > 0
    assert max(map(len, shown.splitlines())) <= 100
    assert (folder / "range-test.png").stat().st_size > 10_000


def test_a_loss_that_does_not_fall_asks_for_more_steps_and_the_files_are_written(tmp_path, capsys):
    path = write_config(tmp_path)
    out = tmp_path / "here"
    arguments = ["--steps-per-precision", "8", "--optimizer.lr", "1e-9", "--out", str(out)]
    assert main(["range-test", str(path), *arguments]) == 1
    shown = capsys.readouterr()
    assert "within noise (two standard errors)" in shown.err
    assert "Use more steps per precision, such as 32" in shown.err
    assert "cost:        8 steps (" in shown.out  # fewer bits were not tried
    assert json.loads((out / "range-test.json").read_text())["low"] is None
    assert (out / "range-test.png").exists()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--range_test.criterion", "paper", "--share", "0.7"], "--share is a setting of the rel"),
        (["--range_test.criterion=relative", "--upper"], "--upper is a setting of the paper"),
        (["--range_test.criterion=relative", "--criterion", "paper"], "relative contradicts --cri"),
    ],
)
def test_an_override_that_contradicts_an_option_is_refused(options, what, tmp_path, capsys):
    assert main(["range-test", str(write_config(tmp_path)), *options]) == 2
    assert what in capsys.readouterr().err


def test_options_choose_the_criterion_and_do_not_mix(tmp_path, capsys, monkeypatch):
    path = write_config(tmp_path)
    fast = ["--steps-per-precision", "8", "--high", "3", "--quiet", "--out", str(tmp_path / "o")]
    relative = ["--share", "0.2", "--repeats", "1", "--window", "4"]
    main(["range-test", str(path), *fast, *relative])
    plan = json.loads((tmp_path / "o" / "range-test.json").read_text())["plan"]
    assert (plan["criterion"], plan["share"], plan["repeats"]) == ("relative", 0.2, 1)
    capsys.readouterr()
    assert main(["range-test", str(path), *fast, "--share", "0.2", "--threshold", "1"]) == 2
    assert "--share is a setting of the relative criterion" in capsys.readouterr().err
    assert main(["range-test", str(path), *fast, "--criterion", "relative", "--upper"]) == 2
    assert "--upper is a setting of the paper criterion" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a recipe"),
        (["digits-float32"], "trains in float32"),
        (["digits-cpt-3-8-8", "--chance", "0"], "chance (0.0) must be greater than 0"),
        (["digits-cpt-3-8-8", "--chance", "1", "--threshold", "1"], "not allowed with"),
        (["digits-cpt-3-8-8", "--low", "9"], "range_test.low (9) must be <= 8"),
        (["digits-cpt-3-8-8", "--high", "1"], "--low (2) must be <= --high (1)"),
        (["digits-cpt-3-8-8", "--quit"], "did you mean '--quiet'?"),
        (["digits-cpt-3-8-8", "--lo", "2"], "did you mean '--low'?"),
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
