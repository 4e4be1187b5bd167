"""bitcycle plan."""

import json
import shlex
import sys

import pytest

from bitcycle.analysis.plan import plan_by_name
from bitcycle.cli.main import main

DIGITS = ["plan", "digits-cpt-3-8-8", "--saving", "40%"]
LADDER = ["plan", "digits_mlp", "--ladder", "mxfp4,bf16", "--backward", "mxfp8", "--saving", "40%"]


def test_the_schedules_that_meet_the_budget_are_listed(capsys):
    assert main(DIGITS) == 0
    out = capsys.readouterr().out
    found = plan_by_name("digits-cpt-3-8-8", saving=0.4)
    assert str(found) in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_command_that_is_shown_trains_the_first_schedule(capsys, tmp_path):
    assert main([*DIGITS, "--saving", "0.4", "--limit", "1"]) == 0
    _, _, command = capsys.readouterr().out.partition("to train it:\n")
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["bitcycle", "train", "digits-cpt-3-8-8"]
    assert main([*words[1:], "--print-config"]) == 0
    first, _ = plan_by_name("digits-cpt-3-8-8", saving=0.4).lines()[0]
    assert f"forward: {first.forward}\n" in capsys.readouterr().out


def test_backward_bits_have_the_default_of_the_scheduler(capsys):
    assert plan_by_name("resnet8", low=3, high=8, saving=0.1).backward == "8"
    assert plan_by_name("digits", low=3, high=8, saving=0.1).backward == "8"
    with pytest.raises(ValueError, match="forward has 12 bits: backward is 8 by default up to 8"):
        plan_by_name("resnet8", low=3, high=12, saving=0.1)
    assert plan_by_name("resnet8", low=3, high=12, saving=0.1, backward="8").backward == "8"


def test_options_reach_the_plan(capsys):
    arguments = [
        "plan", "resnet8", "--bitops", "1e16", "--low", "4", "--high", "8", "--backward", "6",
        "--cycles", "2,4", "--tops", "6,7", "--total-steps", "1000", "--batch-size", "32",
        "--skip", "fc", "--option", "num_classes=100", "--convention", "paper", "--json",
    ]  # fmt: skip
    assert main(arguments) == 0
    data = json.loads(capsys.readouterr().out)
    found = plan_by_name(
        "resnet8", bitops=1e16, low=4, high=8, backward="6", cycles=[2, 4], tops=[6, 7],
        total_steps=1000, batch_size=32, skip=["fc"], options={"num_classes": 100},
        convention="paper",
    )  # fmt: skip
    assert data == {"what": "resnet8", **found.to_dict()}


def test_a_limit_cuts_the_rows_and_bounds_come_from_the_file_of_a_range_test(tmp_path, capsys):
    file = tmp_path / "range-test.json"
    file.write_text(json.dumps({"low": 5, "high": 7, "curve": {}}))
    more = ["--saving", "10%", "--range-test", str(file), "--limit", "3"]
    assert main([*DIGITS, *more, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["low"], data["high"]) == (5, 7)
    assert len(data["rows"]) == 3 < data["num_rows"]


def test_a_picture_is_written(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    target = tmp_path / "plan.png"
    assert main([*DIGITS, "--limit", "2", "--picture", str(target)]) == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert f"wrote {target}" in capsys.readouterr().out


def test_without_matplotlib_the_extra_is_named_and_nothing_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    assert main([*DIGITS, "--picture", str(tmp_path / "plan.png")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert 'pip install "bitcycle[report]"' in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--saving", "40"], "did you mean 40%?"),
        (["--saving", "95%"], "the cheapest, forward 3, takes"),
        (["--cycles", "241"], "cycles (241) must be <= total_steps (240)"),
        (["--low", "8"], "low and high are both 8"),
        (["--convention", "exakt"], "unknown cost convention 'exakt'"),
        (["--limit", "0"], "--limit must be at least 1, got 0"),
        (["--cycles", "2,x"], "expected numbers such as 2,4,8, got '2,x'"),
        (["--picture", "plan.jpg"], "must end in .png"),
        (["--range-test", "nowhere.json"], "there is no file nowhere.json"),
        (["--high", "50"], "high (50) must be a number of bits from 1 to 32"),
        (["--runs", "nowhere"], "there is no folder nowhere with runs"),
    ],
)
def test_a_bad_value_is_exit_code_2_and_nothing_is_printed_or_written(
    extra, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    picture = [] if "--picture" in extra else ["--picture", "plan.png"]
    assert main([*DIGITS, *extra, *picture]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert list(tmp_path.iterdir()) == []


def test_a_studys_name_is_said_to_be_one(capsys):
    assert main(["plan", "gcn-small", "--saving", "40%"]) == 2
    assert "gcn-small is a study; give a recipe or a model to plan" in capsys.readouterr().err


def test_a_ladder_of_formats_is_planned(capsys):
    words = [*LADDER, "--total-steps", "64"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "over mxfp4, bf16, errors at mxfp8" in " ".join(out.split())
    assert "published throughput, bf16 = 1: NVIDIA Blackwell, not measured here" in out
    assert main([*words, "--json", "--limit", "3"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ladder"] == ["mxfp4", "bf16"]
    assert len(data["rows"]) == 3


def test_a_ladder_and_bounds_exclude_each_other(capsys):
    assert main([*LADDER, "--low", "3"]) == 2
    assert "--ladder is given: leave one of them out" in capsys.readouterr().err
    assert main([*LADDER, "--ladder", "bf16,mxfp4"]) == 2
    assert "must rise from the fewest bits to the most" in capsys.readouterr().err


def test_a_recipe_at_formats_needs_their_quantizer_and_the_command_has_it(capsys):
    words = ["plan", "digits-static-8-8", "--ladder", "mxfp4,bf16", "--backward", "mxfp8",
             "--saving", "40%"]  # fmt: skip
    assert main(words) == 2
    assert "mx" in capsys.readouterr().err
    assert main([*words, "--quantizer", "mx", "--cycles", "8"]) == 0
    assert "--precision.quantizer mx" in capsys.readouterr().out
