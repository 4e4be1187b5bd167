"""bitcycle export."""

import json

import pytest

from bitcycle_lab.cli.main import main


def test_it_says_what_was_written_and_how_it_compares(finished, capsys):
    assert main(["export", str(finished), "--to", "safetensors", "--codes"]) == 0
    first, metric, outputs, tolerance = capsys.readouterr().out.splitlines()
    assert first.startswith(f"wrote {finished}/export/model.safetensors: ")
    assert first.endswith("of float32; step 12 at w8a8")
    assert metric.startswith("validation accuracy: run ")
    run, exported = metric.removeprefix("validation accuracy: run ").split(", exported ")
    assert run == exported
    assert outputs.startswith("outputs (largest ")
    assert tolerance.startswith("  within the tolerance of ")


def test_json_has_everything(finished, tmp_path, capsys):
    path = tmp_path / "m.pt"
    assert main(["export", str(finished), "--to", "torch", "--output", str(path), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["is_within_tolerance"] is True
    assert row["file"]["num_bytes"] == path.stat().st_size
    assert row["check"]["metric"] == "accuracy"


def test_a_file_that_does_not_match_is_a_failure(finished, capsys, monkeypatch):
    monkeypatch.setattr("bitcycle_lab.export.Check.is_within", property(lambda check: False))
    assert main(["export", str(finished), "--to", "torch"]) == 1
    assert "NOT within the tolerance" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "torch", "--codes"], "codes"),
        (["--to", "onnx", "--precision", "w12a12"], "12 bits"),
        (["--to", "torch", "--output", "m.onnx"], "must end in .pt"),
    ],
)
def test_bad_options_are_one_line(finished, options, message, capsys):
    assert main(["export", str(finished), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_onnx_says_how_its_grids_are_written(finished, capsys):
    assert main(["export", str(finished), "--to", "onnx", "--precision", "w4a6"]) == 0
    out = capsys.readouterr().out
    assert "weights of 4 bits: explicit Add of the real offset" in out
    assert "inputs of 6 bits: one to one, carried in 8 bits, clipped first" in out
    assert "  within the tolerance of " in out
