"""bitcycle cost."""

import json
from dataclasses import replace

import pytest

from bitcycle_lab.cli.main import main
from bitcycle_lab.recipes import recipe
from bitcycle_lab.train.config_file import to_yaml

RUN = ["cost", "resnet20", "--forward", "CR:3-8:32", "--backward", "8"]


def test_a_model_is_priced_by_stage(capsys):
    assert main(RUN) == 0
    out = capsys.readouterr().out
    assert "resnet20: forward CR:3-8:32, backward 8" in out
    assert "convention 'exact': 64,000 steps, 8,192,000 samples" in out
    assert "relative to static w8a8e8" in out
    for stage in ("conv1", "layer1", "layer2", "layer3", "fc", "all"):
        assert f"\n{stage} " in out
    assert "saving 36." in out
    assert "operand traffic" in out
    assert max(map(len, out.splitlines())) <= 88


def test_backward_has_a_default_that_the_output_names(capsys):
    assert main(["cost", "resnet20", "--forward", "4", "--json"]) == 0
    default = json.loads(capsys.readouterr().out)
    assert default.pop("precision") == {"forward": "4", "backward": 8}
    assert main(["cost", "resnet20", "--forward", "4", "--backward", "8", "--json"]) == 0
    given = json.loads(capsys.readouterr().out)
    assert given.pop("precision") == {"forward": "4", "backward": "8"}
    assert given == default
    assert main(["cost", "digits", "--forward", "CR:3-8:8"]) == 0  # a base recipe
    out = capsys.readouterr().out
    assert "forward CR:3-8:8, backward 8; 64 samples" in out
    assert main(["cost", "resnet20", "--forward", "16"]) == 2
    assert "forward 16" in capsys.readouterr().err


def test_layers_json_and_conventions(capsys):
    assert main([*RUN, "--by-layer", "--convention", "paper"]) == 0
    out = capsys.readouterr().out
    assert "layer2.0.downsample.0" in out
    assert "layer2.0.bn1" in out  # the paper counts BatchNorm
    assert "saving 36.67%" in out
    assert main([*RUN, "--json", "--convention", "followup"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["convention"] == "followup"
    assert data["unit"] == "MACs (32-bit)"
    assert round(data["saving"], 4) == 0.3667


def test_steps_batch_shape_options_and_skip_reach_the_count(capsys):
    def bitops(*more):
        assert main([*RUN, "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)["bitops"]

    base = bitops("--total-steps", "6400", "--batch-size", "8")
    assert bitops("--steps", "6400", "--batch-size", "16") == 2 * base
    shaped = bitops("--steps", "6400", "--batch-size", "8", "--input-shape", "3x64x64")
    assert 3.9 < shaped / base <= 4
    skipped = bitops("--steps", "6400", "--batch-size", "8", "--skip", "layer1", "fc")
    assert skipped > 5 * base
    assert bitops("--steps", "6400", "--batch-size", "8", "--option", "width=32") > 3 * base


def test_a_recipe_is_priced_as_it_is(capsys):
    assert main(["cost", "digits-cpt-3-8-8", "--memory"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("digits_resnet: forward CR:3-8:8, backward 8; 64 samples a step")
    assert "240 steps" in out
    assert "kept for backward" in out


def rows(capsys, *words):
    """The forward and backward texts of every row."""
    assert main(["cost", *words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    return [(row["forward"], row["backward"]) for row in data["rows"]]


def test_schedules_are_a_row_for_each_backward_and_none_twice(capsys):
    words = ["digits", "--schedules", "8", "CR:4-8:8", "static:8", "6", "--backward", "8", "6", "8"]
    assert rows(capsys, *words) == [
        ("6", "6"), ("CR:4-8:8", "6"), ("6", "8"), ("CR:4-8:8", "8"), ("8", "6"), ("8", "8"),
    ]  # fmt: skip
    assert main(["cost", *words, "--budget", "70%"]) == 0
    out = capsys.readouterr().out
    assert "static 8/8" in out
    assert "within 70%" in out
    assert sum(line.endswith("  yes") for line in out.splitlines()) == 4
    assert max(map(len, out.splitlines())) <= 80


def test_schedules_have_the_backward_of_the_recipe_or_the_default(capsys):
    assert rows(capsys, "cifar100-resnet74-cpt-3-6-6", "--schedules", "4") == [("4", "6")]
    assert rows(capsys, "digits_mlp", "--schedules", "4", "fp32") == [("4", "8"), ("fp32", "fp32")]


def test_schedules_replace_the_roles_that_a_file_sets_by_themselves(capsys, tmp_path):
    pytest.importorskip("jsonargparse")
    path = tmp_path / "mine.yaml"
    config = recipe("digits-cpt-3-8-8")
    own = replace(config.precision, weight="2", error="CR:6-8:8")
    path.write_text(to_yaml(replace(config, precision=own)))
    words = [str(path), "--schedules", "8", "4"]
    assert rows(capsys, *words, "--backward", "8") == [("4", "8"), ("8", "8")]
    assert rows(capsys, *words)[0] == ("4", "backward 8, error CR:6-8:8")
    assert main(["cost", *words, "--backward", "8"]) == 0
    assert "static 8/8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["cost"], "give a model"),
        (["cost", "--schedules", "8", "resnet20"], "give a model"),
        (["cost", "digits", "--schedules", "8", "CR:3-8:300"], "CR:3-8:300"),
        (["cost", "digits", "--schedules", "8", "CR:3-9-8"], "CR:3-9-8"),
        (["cost", "digits", "--schedules", "8", "16"], "16"),
        (["cost", "digits", "--schedules", "8", "--budget", "70"], "'70'"),
        (["cost", "digits", "--schedules", "8", "--forward", "8"], "--forward"),
        (["cost", "digits", "--schedules", "8", "--by-layer"], "--by-layer"),
        (["cost", "digits", "--budget", "70%"], "--budget"),
        (["cost", "digits", "--forward", "8", "--backward", "8", "6"], "8 6"),
        (["cost", "--paper", "--schedules", "8"], "--paper"),
        (["cost", "resnet21", "--forward", "8"], "did you mean 'resnet20'?"),
        (["cost", "resnet20"], "--forward"),
        (["cost", "resnet20", "--forward", "CR:3-9-8"], "CR:3-9-8"),
        ([*RUN, "--batch-size", "-1"], "got -1"),
        ([*RUN, "--input-shape", "big"], "3x224x224"),
        ([*RUN, "--option", "num_class=3"], "unknown option of resnet20 'num_class'"),
        (["cost", "resnet20", "--paper"], "--paper"),
        (["cost", "--paper", "--batch-size", "4"], "--paper"),
    ],
)
def test_a_mistake_is_said_and_exit_code_2(argv, message, capsys):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "bitcycle: error: " in captured.err  # a log line may come before
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("as_json", [False, True])
def test_the_paper_is_compared(as_json, capsys, monkeypatch):
    """One network: tests/bitcycle_lab/cost/test_paper.py tests the numbers of all."""
    import bitcycle_lab.cost.paper as paper_cost

    monkeypatch.setattr(paper_cost, "_TABLES", {"Table 2": paper_cost._TABLES["Table 2"]})
    monkeypatch.setattr(paper_cost, "_latencies", lambda counted: iter(()))
    rows = [r for r in paper_cost.read_table("table2_cifar") if r["model"] == "resnet74"]
    tables = {"table2_cifar": tuple(rows), "table5_language": ()}
    monkeypatch.setattr(paper_cost, "read_table", tables.__getitem__)
    assert main(["cost", "--paper", *(["--json"] if as_json else [])]) == 0
    out = capsys.readouterr().out
    if as_json:
        assert [row["bits"] for row in json.loads(out)["costs"]] == ["8/8", "3-8/8", "6/6", "3-6/6"]
    else:
        assert "Table 2  resnet74  3-8/8   1.68e+08  1.690e+08     +0.59%  36.67%" in out


def test_formats_have_a_column_of_published_throughput(capsys):
    words = ["cost", "digits_mlp", "--forward", "stages:mxfp4@0.5,bf16", "--backward", "mxfp8",
             "--total-steps", "100"]  # fmt: skip
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("digits_mlp: forward stages:mxfp4@0.5,bf16, backward mxfp8; 128 samples")
    assert "relative to static w=bf16,a=bf16,e=mxfp8, the schedules' tops" in out
    # half of the steps: output at 4, the others at the errors' 2; the other half at 1
    assert "published throughput, bf16 = 1: NVIDIA Blackwell, not measured here" in out
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["published_throughput"]["speedup"]) == {"GB200", "GB300"}
    assert data["precision"] == {"forward": "stages:mxfp4@0.5,bf16", "backward": "mxfp8"}


def test_formats_of_two_quantizers_and_a_missing_backward_are_errors(capsys):
    assert main(["cost", "digits_mlp", "--forward", "mxfp8", "--backward", "nvfp4"]) == 2
    assert "mxfp8 and nvfp4" in capsys.readouterr().err
    assert main(["cost", "digits_mlp", "--forward", "mxfp8"]) == 2
    assert "backward" in capsys.readouterr().err
