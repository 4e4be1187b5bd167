"""`bitcycle sensitivity` from the keyboard's side."""

import json

import pytest

from bitcycle.sensitivity import Sensitivity
from bitcycle_lab.cli.main import main
from tests.bitcycle_lab.cli.runs import write_config


def test_it_prints_the_ranking_and_writes_numbers_and_picture(tmp_path, capsys):
    path, out = write_config(tmp_path), tmp_path / "here"
    options = ["--bits", "3", "--after", "2", "--batches", "1", "--out", str(out), "--seed", "3"]
    assert main(["sensitivity", str(path), *options]) == 0
    shown = capsys.readouterr().out
    data = json.loads((out / "sensitivity.json").read_text())
    found = Sensitivity.from_dict(data["sensitivity"])
    assert str(found) in shown
    assert ("--precision.forward" in shown) == bool(found.sensitive)
    assert "digits_mlp on digits, seed 3, 2 steps" in shown
    assert (found.bits, found.num_batches) == ("3 bits", 1)
    assert (data["recipe"], data["overrides"]) == (str(path), ["--seed", "3"])
    assert (out / "sensitivity.png").stat().st_size > 10_000


def test_without_out_it_writes_nothing(tmp_path, capsys):
    path = write_config(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["sensitivity", str(path), "--after", "0", "--bits", "w4a4e8", "--quiet"]) == 0
    assert sorted(tmp_path.rglob("*")) == before
    assert "w4a4e8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "give a recipe"),
        (["digits-float32"], "float32"),
        (["digits-cpt-3-8-8", "--bits", "w4x2"], "w4x2"),
        (["digits-cpt-3-8-8", "--batches", "0"], "(0)"),
        (["digits-cpt-3-8-8", "--bit", "4"], "--bits"),
        (["digits-cpt-3-8-8", "--out", __file__], __file__),
    ],
)
def test_what_cannot_be_measured_is_a_usage_error(arguments, named, capsys):
    assert main(["sensitivity", *arguments]) == 2
    assert named in capsys.readouterr().err
