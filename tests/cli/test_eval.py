"""bitcycle eval."""

import json
import shutil
import warnings

import pytest

from bitcycle.cli.main import main


def evaluated(finished, capsys, *options):
    assert main(["eval", str(finished), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_by_default_it_is_the_result_of_the_run(finished, capsys):
    row = evaluated(finished, capsys)
    result = json.loads((finished / "result.json").read_text())
    assert row["metrics"] == result["final"]
    assert (row["precision"], row["split"], row["step"]) == ("w8a8", "test", 12)


@pytest.mark.parametrize(
    ("precision", "shown"),
    [("full", "fp32"), ("scheduled", "w8a8"), ("w2", "w2")],
)
def test_the_bits_are_those_that_were_asked_for(precision, shown, finished, capsys):
    row = evaluated(finished, capsys, "--precision", precision)
    assert row["precision"] == shown
    assert 0 <= row["metrics"]["accuracy"] <= 100


def test_the_best_checkpoint_is_the_best_of_the_result(finished, capsys):
    row = evaluated(finished, capsys, "--checkpoint", "best")
    best = json.loads((finished / "result.json").read_text())["best"]
    assert row["step"] == best["step"]
    assert row["metrics"]["accuracy"] == best["accuracy"]


def test_the_line_says_split_bits_and_step(finished, capsys):
    assert main(["eval", str(finished), "--precision", "w4a4", "--split", "validation"]) == 0
    assert capsys.readouterr().out.startswith("validation at w4a4, step 12: accuracy ")


def test_nothing_is_written(finished, capsys):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    evaluated(finished, capsys, "--precision", "full")
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        (["--precision", "w99"], 2, "got 99"),
        (["--precision", "lots"], 2, "lots"),
        (["--split", "tset"], 2, "tset"),
        (["--checkpoint", "first"], 2, "first"),
        (["--data.rot", "x"], 2, "did you mean 'data.root'?"),
    ],
)
def test_a_bad_value_is_an_error_that_names_it(options, code, part, finished, capsys):
    assert main(["eval", str(finished), *options]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert part in captured.err


def test_what_is_not_a_run_or_has_no_checkpoint_is_an_error(finished, tmp_path, capsys):
    assert main(["eval", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err
    copy = shutil.copytree(finished, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    assert main(["eval", str(copy)]) == 1
    assert "has no last checkpoint" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_passed_over_loudly(finished, tmp_path, capsys):
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "checkpoints" / "step-00000012" / "model.safetensors").write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["eval", str(copy)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("test at w8a8, step 9: ")
    assert captured.err.startswith("bitcycle: warning: damaged checkpoint passed over (step-000000")
