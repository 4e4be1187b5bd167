"""bitcycle schedule."""

import io
import json
import sys

import pytest

from bitcycle_lab.cli.main import main


def test_a_schedule_is_drawn_with_its_numbers(capsys):
    assert main(["schedule", "CR:3-8:8", "--steps", "64000", "--width", "70"]) == 0
    out = capsys.readouterr().out
    assert "\u2588" in out
    assert "bits  3: 20.5%  4: 16.4%  5: 13.1%  6: 13.1%  7: 16.4%  8: 20.5%" in out
    assert "mean  5.50 bits, 47 switches, 8 cycles" in out
    # CR, 3-8, b = 8 in the cost table
    assert "cost  0.633 of static 8 (backward 8, the default up to 8" in out


def test_several_schedules_are_drawn_one_under_another(capsys):
    assert main(["schedule", "8", "CT:3-8:3", "--steps", "3000"]) == 0
    out = capsys.readouterr().out
    assert out.index("8 bits throughout") < out.index("CT:3-8:3")
    assert "use an even number" in " ".join(out.split())


def test_backward_bits_follow_the_forward_bits_unless_they_are_given(capsys):
    assert main(["schedule", "4", "fp32", "stages:8@0.5,fp32", "--width", "200"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  cost")]
    assert lines[:2] == [
        "  cost  1.000 of static 4 (backward 8, the default up to 8 bits forward)",
        "  cost  1.000 of static fp32 (backward fp32, the default with float32 forward)",
    ]
    assert lines[2].startswith("  cost  not counted: ")
    assert main(["schedule", "16", "--backward", "8"]) == 0
    assert "cost  1.000 of static 16 (backward 8)" in capsys.readouterr().out
    assert main(["schedule", "16", "--json"]) == 0
    (preview,) = json.loads(capsys.readouterr().out)
    assert (preview["backward"], preview["relative_cost"]) == ("not given", None)


def test_formats_are_drawn_by_name(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "formats.png"
    argv = ["schedule", "CR:mxfp4,mxfp8,bf16:8", "--steps", "800", "--png", str(target)]
    assert main([*argv, "--backward", "bf16", "--width", "70"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["bf16", "mxfp8", "mxfp4"]
    assert "  bits  mxfp4: 34.0%  mxfp8: 33.0%  bf16: 33.0%" in lines
    assert "  cost  0.531 of static bf16 (backward bf16)" in lines
    assert target.read_bytes().startswith(b"\x89PNG")
    assert main(["schedule", "stages:nvfp4@0.82,bf16", "--json"]) == 0
    (preview,) = json.loads(capsys.readouterr().out)
    assert preview["steps_at"] == {"nvfp4": 52480, "bf16": 11520}


def test_an_output_without_blocks_gets_ascii(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["schedule", "CR:3-8:8", "fp32"]) == 0
    out.seek(0)
    assert "|##" in out.read()


def test_json_is_a_list_of_previews(capsys):
    assert main(["schedule", "CR:3-8:8", "fp32", "--json", "--backward", "fp32"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["schedule"] == "CR:3-8:8"
    assert first["backward"] is None
    assert second["relative_cost"] == 1.0


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--steps", "0"], "got 0"),
        (["--backward", "CR:3-8"], "--backward"),
        (["--width", "5"], "got 5"),
        (["--png", "bits.jpg"], ".png"),
        (["CR:3-8:x"], "cycles"),
    ],
)
def test_a_bad_value_is_exit_code_2_and_nothing_is_printed_or_written(
    extra, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    png = [] if "--png" in extra else ["--png", "bits.png"]
    assert main(["schedule", "CR:3-8:8", *extra, *png]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("more", [[], ["--png", "bits.png"]])
def test_bits_that_follow_the_training_are_not_guessed(capsys, tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    assert main(["schedule", "CR:3-8:8", "plateau:3-8", *more]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "plateau:3-8:window=0.00625" in shown.err
    assert not list(tmp_path.iterdir())
