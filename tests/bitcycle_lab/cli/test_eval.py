"""bitcycle eval."""

import json
import shutil

import pytest

from bitcycle_lab.cli.main import main


def evaluated(finished, capsys, *options):
    assert main(["eval", str(finished), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_by_default_it_is_the_result_of_the_run(finished, capsys):
    row = evaluated(finished, capsys)
    result = json.loads((finished / "result.json").read_text())
    assert row["metrics"] == result["final"]
    assert (row["precision"], row["split"], row["step"]) == ("w8a8", "test", 12)


def test_the_best_checkpoint_is_the_best_of_the_result(finished, capsys):
    row = evaluated(finished, capsys, "--checkpoint", "best")
    best = json.loads((finished / "result.json").read_text())["best"]
    assert row["step"] == best["step"]
    assert row["metrics"]["accuracy"] == best["accuracy"]


def test_the_line_says_split_bits_and_step(finished, capsys):
    assert main(["eval", str(finished), "--precision", "w4a4", "--split", "validation"]) == 0
    assert capsys.readouterr().out.startswith("validation at w4a4, step 12: accuracy ")


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        (["--precision", "w99"], 2, "got 99"),
        (["--precision", "lots"], 2, "lots"),
        (["--split", "tset"], 2, "tset"),
        (["--checkpoint", "first"], 2, "first"),
        (["--data.rot", "x"], 2, "did you mean '--data.root'?"),
    ],
)
def test_a_bad_value_is_an_error_that_names_it(options, code, part, finished, capsys):
    assert main(["eval", str(finished), *options]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert part in captured.err


def test_a_run_without_a_checkpoint_is_an_unusable_input(finished, tmp_path, capsys):
    copy = shutil.copytree(finished, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    for checkpoint in ("last", "best"):
        assert main(["eval", str(copy), "--checkpoint", checkpoint]) == 2
        assert f"{copy} has no checkpoint yet" in capsys.readouterr().err
