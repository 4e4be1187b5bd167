"""bitcycle train and bitcycle resume."""

import json

import pytest
import yaml

import bitcycle_lab.train.loop
from bitcycle_lab.cli.main import main
from bitcycle_lab.train.config_file import read_config
from tests.bitcycle_lab.cli.runs import write_config
from tests.bitcycle_lab.data.layouts import (
    planetoid_parts,
    write_planetoid,
    write_text,
)


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_config(tmp_path)


def run_of(tmp_path, seed=0):
    return tmp_path / "runs" / f"tiny-seed{seed}"


# -- a run ---------------------------------------------------------------------------------------


def test_a_configuration_with_overrides_is_trained(config, tmp_path, capsys):
    assert main(["train", str(config), "--optimizer.lr", "0.05", "--seed", "3"]) == 0
    directory = run_of(tmp_path, seed=3)
    stored = read_config(directory / "config.yaml")
    assert (stored.optimizer.lr, stored.seed, stored.steps) == (0.05, 3, 12)
    result = json.loads((directory / "result.json").read_text())
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[-2].startswith(f"accuracy {result['final']['accuracy']:.2f} at w8a8, best by val")
    assert lines[-1] == f"{directory}/result.json"
    assert any(line.startswith("step 12/12  loss ") for line in lines)
    assert captured.err == "bitcycle: 3 of 3 modules that multiply are converted\n"  # the log


def test_a_quiet_run_does_not_show_the_log(config, capsys):
    assert main(["train", str(config), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_print_config_shows_every_key_and_trains_nothing(config, tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    assert main(["train", str(config), "--print-config"]) == 0
    shown = capsys.readouterr().out
    again = tmp_path / "again.yaml"
    again.write_text(shown)
    assert read_config(again) == read_config(config)
    assert yaml.safe_load(shown)["lr"]["policy"] == "step"  # a default
    again.unlink()
    assert sorted(tmp_path.iterdir()) == before


def test_a_finished_run_is_not_overwritten_and_resume_auto_gives_its_result(
    config, tmp_path, capsys
):
    assert main(["train", str(config), "--resume", "auto", "--quiet"]) == 0  # begins it
    before = (run_of(tmp_path) / "result.json").read_bytes()
    captured = capsys.readouterr()
    assert (len(captured.out.splitlines()), captured.err) == (2, "")
    assert main(["train", str(config)]) == 2
    refusal = capsys.readouterr()
    assert refusal.out == ""
    assert "--resume auto" in refusal.err
    assert main(["train", str(config), "--resume", "auto"]) == 0
    assert capsys.readouterr().out == captured.out
    assert (run_of(tmp_path) / "result.json").read_bytes() == before


# -- resuming -----------------------------------------------------------------------------------


@pytest.fixture
def interrupted(config, tmp_path, monkeypatch, capsys):
    """A run that lost its process at step 7; its last checkpoint is of step 6."""
    original = bitcycle_lab.train.loop.train_step

    def dying(session, micro_batches):
        if session.step == 7:
            raise KeyboardInterrupt
        original(session, micro_batches)

    with monkeypatch.context() as patch:
        patch.setattr(bitcycle_lab.train.loop, "train_step", dying)
        assert main(["train", str(config), "--quiet"]) == 130
    assert capsys.readouterr().err == "bitcycle: interrupted\n"
    return run_of(tmp_path)


def whole_run(config, tmp_path):
    assert main(["train", str(config), "--output", str(tmp_path / "whole"), "--quiet"]) == 0
    return json.loads((tmp_path / "whole" / "tiny-seed0" / "result.json").read_text())


@pytest.mark.parametrize("command", ["resume", "train --resume auto"])
def test_an_interrupted_run_resumes_to_the_result_of_an_uninterrupted_one(
    command, interrupted, config, tmp_path, capsys
):
    argv = ["resume", str(interrupted)]
    if command != "resume":
        argv = ["train", str(config), "--resume", "auto"]
    assert main(argv) == 0
    assert "resumed at step 6" in capsys.readouterr().out
    result = json.loads((interrupted / "result.json").read_text())
    expected = whole_run(config, tmp_path)
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert result["final"] == expected["final"]


def test_resuming_what_is_not_a_run_is_an_error(tmp_path, capsys):
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert main(["resume", str(folder)]) == 2
        assert f"{folder} is not a run" in capsys.readouterr().err


# -- errors --------------------------------------------------------------------------------------


def refused(argv, capsys, tmp_path, *words):
    """Exit code 2, one message with these words, no output, no traceback, no file."""
    before = sorted(tmp_path.rglob("*"))
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0].startswith("bitcycle: error: ")
    assert "Traceback" not in captured.err
    assert all(word in captured.err for word in words), captured.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (["--quite", "x"], "'--quiet'"),
        (["--name", "--print-config"], "'--print-config'"),
        (["--precision.forward", "None"], "None"),
        (["--precision.forward", "CR:8-3:2"], "precision.forward"),
        (["--lr.policy", "cos"], "constant, step, cosine"),
        (["--range_test.criterion", "x"], "relative, paper"),
        (["--steps", "many"], "int or null, got 'many'"),
        (["--lr", "0.1"], "'--optimizer.lr'"),
        (["--optimizer.lt", "0.1"], "'--optimizer.lr'"),
        (["--optimizer.lr", "fast"], "fast"),
        (["--optimizer.lr"], "optimizer.lr"),
        (["--precision.skip", "layer9"], "layer9"),
        (["--epochs", "2"], "steps (12) and epochs (2.0)"),
        (["--model.name", "digits_mpl"], "'digits_mlp'"),
        (["--model.name", "gcn", "--model.options", "{}"], "'graph'"),
        (["--name", "a/b"], "'a/b'"),
    ],
)
def test_a_wrong_override_is_an_error_that_names_it_and_creates_nothing(
    override, words, config, tmp_path, capsys
):
    refused(["train", str(config), *override], capsys, tmp_path, words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimzer": {"lr": 0.1}}, "tiny.yaml; did you mean 'optimizer"),
        ({"version": 2}, "tiny.yaml; bitcycle train RECIPE --print-config"),  # nothing is near
        ({"precision": {"quantizer_options": {"flor": 1}}}, "flor"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_key(changes, words, tmp_path, capsys):
    path = write_config(tmp_path, **changes)
    refused(["train", str(path)], capsys, tmp_path, words)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train"], "recipe"),
        (["train", "missing.yaml"], "missing.yaml"),
        (["train", "run"], "bitcycle resume"),
        (["train", "digits-ctp-3-8-8"], "'digits-cpt-3-8-8'"),
        (["train", "--quite", "digits-cpt-3-8-8"], "'--quite'"),
    ],
)
def test_what_to_train_must_be_there(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    refused(argv, capsys, tmp_path, words)


@pytest.fixture
def cifar(tmp_path):
    return write_config(
        tmp_path,
        model={"name": "resnet8", "options": {"width": 4}},
        data={"name": "cifar10", "subset": None, "validation": None, "batch_size": 4},
    )


def test_data_without_a_root_says_which_option_and_how_to_get_it(cifar, tmp_path, capsys):
    refused(["train", str(cifar)], capsys, tmp_path, "--data.root", "https://www.cs.toronto.edu")


# -- other tasks ---------------------------------------------------------------------------------


def test_an_lstm_and_its_decoder_are_quantized(tmp_path, capsys):
    root = write_text(tmp_path / "ptb")
    path = write_config(
        tmp_path,
        task="language",
        model={"name": "lstm_lm", "options": {"embedding_dim": 8, "hidden_dim": 8}},
        data={"name": "ptb", "root": str(root), "subset": None, "validation": None,
              "batch_size": 2, "sequence_length": 2, "cache_dir": str(tmp_path)},
    )  # fmt: skip
    assert main(["train", str(path)]) == 0
    out = capsys.readouterr().out
    assert "stays float32" not in out
    assert "perplexity" in out
    result = json.loads((run_of(tmp_path) / "result.json").read_text())
    assert list(result["kernels"]) == ["lstm", "decoder"]


def test_a_graph_net_sums_along_edges_in_float32_or_quantized(tmp_path, capsys):
    pytest.importorskip("torch_geometric")
    root = write_planetoid(tmp_path / "cora", planetoid_parts())
    path = write_config(
        tmp_path,
        task="nodes",
        model={"name": "gcn", "options": {"hidden_dim": 4}},
        data={"name": "cora", "root": str(root), "subset": None, "validation": None},
        steps=2,
        precision={"forward": 4},
    )
    assert main(["train", str(path)]) == 0
    out = capsys.readouterr().out
    assert "stays float32: convs.0 (sums along edges in float32 (aggregation='float32'))" in out
    assert "accuracy" in out
    quantized = ["--precision.quantizer_options.aggregation", "quantized", "--name", "qagg"]
    assert main(["train", str(path), *quantized]) == 0
    assert "stays float32" not in capsys.readouterr().out
