"""Classification of sentence pairs."""

import math

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.cost import CostMeter
from bitcycle_lab.data.pairs import split_targets
from bitcycle_lab.tasks import TASKS, DataConfig, ModelConfig
from tests.bitcycle_lab.data.pair_layouts import write_snli, write_xnli
from tests.bitcycle_lab.models.pretrained import write_model

pytest.importorskip("transformers")

SIZES = {"vocab_size": 300, "dim": 8, "ffn_dim": 16, "num_layers": 1, "num_heads": 2}
TINY = ModelConfig(name="bert", options=SIZES)


@pytest.fixture
def make(tmp_path):
    def task(model=TINY, name="xnli", **data):
        root = (write_xnli if name == "xnli" else write_snli)(tmp_path / name)
        settings = {"batch_size": 6, "eval_batch_size": 5, "sequence_length": 24, **data}
        return TASKS["pairs"](model, DataConfig(name=name, root=str(root), **settings), seed=3)

    return task


class Guess(nn.Module):
    """Logits that favour one label for every pair."""

    def __init__(self, label):
        super().__init__()
        self.label = label

    def forward(self, tokens, mask, types):
        logits = torch.zeros(len(tokens), 3)
        logits[:, self.label] = 1.0
        return logits


def evaluate(task, model, split):
    sums = {}
    for batch in task.eval_batches(split):
        _, new = task.loss(model, batch)
        sums = {name: sums.get(name, 0.0) + value.item() for name, value in new.items()}
    return task.metrics(sums)


def test_accuracy_is_told_for_all_pairs_and_for_each_language(make):
    task = make()
    metrics = evaluate(task, Guess(0), "test")
    assert metrics["accuracy"] == pytest.approx(100 / 3)
    assert metrics["loss"] == pytest.approx(math.log(math.e + 2) - 1 / 3)
    assert metrics["accuracy_de"] == metrics["accuracy_en"] == pytest.approx(100 / 3)
    batch = next(iter(task.eval_batches("test")))  # five pairs, all German
    labels, _ = split_targets(batch.targets, 3)
    _, sums = task.loss(Guess(0), batch)
    few = task.metrics({name: value.item() for name, value in sums.items()})
    assert few["accuracy_de"] == pytest.approx(100 * (labels == 0).double().mean().item())
    assert "accuracy_en" not in few


def test_a_file_without_languages_has_one_accuracy(make):
    assert set(evaluate(make(), Guess(0), "train")) == {"accuracy", "loss"}
    assert set(evaluate(make(name="snli"), Guess(0), "test")) == {"accuracy", "loss"}


def test_the_splits_are_the_files_or_held_out(make):
    task = make()
    assert task.has_validation
    assert len(task.splits["validation"]) == 6
    assert task.chance == pytest.approx(100 / 3)
    plain = make(name="snli")
    assert not plain.has_validation
    held = make(name="snli", validation=4, subset=10)
    assert (len(held.splits["validation"]), len(held.splits["train"])) == (4, 10)


def test_a_batch_is_a_function_of_the_step_and_ranks_divide_it(make):
    task, again = make(), make()
    whole = task.train_batches().batch_at(5)
    assert whole.inputs.shape == (6, 3, 24)
    assert torch.equal(whole.inputs, again.train_batches().batch_at(5).inputs)
    parts = [task.train_batches(rank=r, world_size=2).batch_at(5).inputs for r in range(2)]
    assert torch.equal(torch.cat(parts), whole.inputs)


def test_the_model_has_the_tokenizers_tokens_and_the_datas_labels(make):
    task = make()
    model = task.build_model()
    assert (model.vocab_size, model.num_classes) == (task.encoder.vocab_size, 3)
    inputs = task.example_inputs(task.train_batches().batch_at(0))
    assert [part.shape for part in inputs] == [(2, 24)] * 3
    assert model(*inputs).shape == (2, 3)


def test_a_runs_tokenizer_is_used_again(make, tmp_path):
    task = make(ModelConfig(name="bert", options={**SIZES, "vocab_size": 270}))
    [(name, text)] = task.files().items()
    (tmp_path / name).write_text(text, encoding="utf-8")
    other = make()  # would train one of 300 tokens
    other.take_files(tmp_path)
    assert other.files() == {name: text}
    assert other.encoder.vocab_size == 270
    (tmp_path / name).write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=name):
        make().take_files(tmp_path)


def test_tokens_do_not_depend_on_the_subset(make):
    assert make(name="snli", subset=3).files() == make(name="snli").files()


def test_a_downloaded_model_brings_its_weights_and_its_tokenizer(make, tmp_path):
    folder = write_model(tmp_path / "model")
    task = make(ModelConfig(name="bert", path=str(folder)))
    model = task.build_model()
    assert type(model.net).__name__ == "BertForSequenceClassification"
    assert task.loss(model, task.train_batches().batch_at(0))[0].isfinite()
    with pytest.raises(FileNotFoundError, match="none"):
        make(ModelConfig(name="bert", path=str(tmp_path / "none")))


@pytest.mark.parametrize(("precision", "only"), [("FW5/BW8", None), ("FW8/BW8", [nn.Linear])])
def test_converted_it_trains_evaluates_and_its_cost_is_counted(make, precision, only):
    task = make(name="snli")
    torch.manual_seed(0)
    model = bc.quantize_model(task.build_model(), only=only, kernel="simulate")
    batch = task.train_batches().batch_at(0)
    meter = CostMeter(model, task.example_inputs(batch))
    bc.set_precision(model, precision)
    loss, _ = task.loss(model, batch)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    meter.step(task.num_samples(batch))
    assert meter.bitops > 0
    assert 0 <= evaluate(task, model.eval(), "test")["accuracy"] <= 100


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ({}, {"sequence_length": 4}, r"data.sequence_length \(4\)"),
        ({"vocab_size": 100}, {}, r"model.options.vocab_size \(100\)"),
        ({"max_length": 20}, {}, r"sequence_length \(35\).*max_length \(20\)"),
        ({"layers": 2}, {}, "'bert'.*'layers'"),
        ({}, {"name": "cora"}, "'cora'.*snli"),
    ],
)
def test_settings_that_cannot_be_are_errors_before_anything_is_read(model, data, message):
    config = DataConfig(**{"name": "snli", **data})
    with pytest.raises(ValueError, match=message):
        TASKS["pairs"].check(ModelConfig(name="bert", options=model), config)


def test_fewer_classes_than_labels_are_an_error(make):
    task = make(ModelConfig(name="bert", options={**SIZES, "num_classes": 2}))
    with pytest.raises(ValueError, match=r"num_classes \(2\).*3"):
        task.build_model()
