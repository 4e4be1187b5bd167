"""Sentence pairs through the runner: exact resume, evaluation, a downloaded model, languages."""

import dataclasses
import json

import pytest

from bitcycle_lab.cli.main import main
from bitcycle_lab.tasks import DataConfig, ModelConfig
from bitcycle_lab.train import OptimizerConfig, PrecisionConfig, resume, run
from bitcycle_lab.train.evaluate import evaluate_run
from tests.bitcycle_lab.data.pair_layouts import write_snli, write_xnli
from tests.bitcycle_lab.models.pretrained import write_model
from tests.bitcycle_lab.train.small import Killed, folder_of, kill_before_step, small, traces

pytest.importorskip("transformers")

BERT = ModelConfig(
    name="bert",
    options={"vocab_size": 300, "dim": 16, "ffn_dim": 32, "num_layers": 1, "num_heads": 2},
)


def pairs(output, root, **changes):
    settings = {
        "task": "pairs",
        "model": BERT,
        "data": DataConfig(name="xnli", root=str(root), batch_size=8, eval_batch_size=8,
                           sequence_length=24),
        "optimizer": OptimizerConfig(name="adamw", lr=1e-3),
        "precision": PrecisionConfig(forward="CR:5-8:2", backward=8),
    }  # fmt: skip
    return small(output, **{**settings, **changes})


def test_a_run_that_died_and_is_resumed_is_the_same_run(tmp_path, monkeypatch):
    root = write_xnli(tmp_path / "data")
    changes = {"model": ModelConfig(name="bert", path=str(write_model(tmp_path / "model")))}
    whole = pairs(tmp_path / "whole", root, **changes)
    run(whole)
    broken = pairs(tmp_path / "broken", root, **changes)
    with monkeypatch.context() as patch:
        kill_before_step(patch, 7)
        with pytest.raises(Killed):
            run(broken)
    resume(folder_of(broken))
    assert traces(folder_of(broken)) == traces(folder_of(whole))
    tokenizers = [(folder_of(c) / "tokenizer.json").read_bytes() for c in (broken, whole)]
    assert tokenizers[0] == tokenizers[1]


def test_a_run_is_resumed_and_evaluated_with_its_own_tokenizer(tmp_path, monkeypatch):
    config = pairs(tmp_path / "runs", write_xnli(tmp_path / "data"))
    with monkeypatch.context() as patch:
        kill_before_step(patch, 7)
        with pytest.raises(Killed):
            run(config)

    def never(*_):
        raise AssertionError("was trained again")

    monkeypatch.setattr("bitcycle_lab.tasks.pairs.train_tokenizer", never)
    result = resume(folder_of(config))
    metrics = evaluate_run(folder_of(config))["metrics"]
    assert metrics["accuracy"] == result.value
    assert set(metrics) == {"accuracy", "loss", "accuracy_de", "accuracy_en"}
    (folder_of(config) / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="tokenizer.json"):
        evaluate_run(folder_of(config))


def test_a_tokenizer_that_was_not_written_yet_is_trained_again(tmp_path, monkeypatch):
    config = pairs(tmp_path / "runs", write_snli(tmp_path / "data"),
                   data=DataConfig(name="snli", root=str(tmp_path / "data"), batch_size=8,
                                   sequence_length=24))  # fmt: skip
    with monkeypatch.context() as patch:
        kill_before_step(patch, 1)
        with pytest.raises(Killed):
            run(config)
    path = folder_of(config) / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    path.unlink()
    resume(folder_of(config))
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_the_small_recipe_learns_and_reports_on_the_command_line(tmp_path, capsys):
    root = write_snli(tmp_path, train=60, test=30)
    options = ["--data.root", str(root), "--output", str(tmp_path / "runs"), "--steps", "60",
               "--model.options.dim", "32", "--model.options.num_heads", "2",
               "--model.options.vocab_size", "320", "--data.sequence_length", "24",
               "--data.batch_size", "20", "--threads", "1", "--eval.every", "0",
               "--optimizer.lr", "0.003"]  # fmt: skip
    assert main(["train", "snli-bert-cpt-5-8-8-small", *options]) == 0
    [path] = (tmp_path / "runs").glob("*/result.json")
    result = json.loads(path.read_text())
    assert result["final"]["accuracy"] > 80  # a word gives the label away; chance is 33
    assert result["cost"]["uncounted"] == []
    capsys.readouterr()


def test_a_missing_model_folder_and_a_damaged_file_stop_before_a_run_exists(tmp_path, capsys):
    root = write_snli(tmp_path / "data")
    config = pairs(tmp_path / "runs", root)
    missing = dataclasses.replace(BERT, path=str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match=r"model\.path"):
        run(dataclasses.replace(config, model=missing))
    (root / "snli" / "train.tsv").write_text("label\tpremise\thypothesis\nneutral\ta\n")
    code = main(["train", "snli-bert-float32-small", "--data.root", str(root),
                 "--output", str(tmp_path / "runs")])  # fmt: skip
    assert code != 0
    assert "train.tsv: line 2 has 2 tab-separated cells" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
