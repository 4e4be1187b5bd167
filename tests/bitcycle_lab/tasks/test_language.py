"""Language modelling: streams for recurrent models, blocks for the others."""

import json
import math
import random

import pytest
import torch

from bitcycle.precision import Precision
from bitcycle_lab.tasks import TASKS, DataConfig, ModelConfig
from bitcycle_lab.train.checkpoint import join_state, split_state
from bitcycle_lab.train.evaluate import evaluate

NUM_WORDS = {"train": 83, "valid": 37, "test": 29}
LSTM = ModelConfig(name="lstm_lm", options={"embedding_dim": 6, "hidden_dim": 5})
TRANSFORMER = ModelConfig(
    name="transformer_lm", options={"dim": 8, "ffn_dim": 12, "num_layers": 1, "num_heads": 2}
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Penn Treebank's files, with a few dozen words each."""
    folder = tmp_path_factory.mktemp("ptb")
    words, choose = ["the", "cat", "dog", "sat", "saw", "<unk>", "a"], random.Random(0)
    for split, number in NUM_WORDS.items():
        lines, left = [], number
        while left > 0:
            length = min(left - 1, choose.randint(2, 8))  # the end of the line is a word too
            lines.append(" ".join(choose.choices(words, k=length)))
            left -= length + 1
        (folder / f"ptb.{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def make(root, tmp_path):
    def task(model, **data):
        settings = {"batch_size": 4, "eval_batch_size": 3, "sequence_length": 5, **data}
        return TASKS["language"](
            model, DataConfig(name="ptb", root=str(root), cache_dir=str(tmp_path), **settings)
        )

    return task


def build(task):
    torch.manual_seed(0)
    return task.build_model().eval()


def metrics_of(task, model, split, **position):
    """Over a whole pass, by the task."""
    task.start_pass()
    totals = {}
    with torch.no_grad():
        for batch in task.eval_batches(split, **position):
            _, sums = task.loss(model, batch)
            totals = {name: totals.get(name, 0.0) + value.item() for name, value in sums.items()}
    return totals


def word_losses(model, sequence):
    """-log p of every word but the first, the sequence read in one go from a zero state."""
    with torch.no_grad():
        output = model(sequence[None, :-1])
    logits = output[0] if isinstance(output, tuple) else output
    log_p = logits[0].log_softmax(dim=1)
    return [-log_p[i, word].item() for i, word in enumerate(sequence[1:].tolist())]


def pieces(tokens, length):
    """Consecutive stretches of `length` inputs, each with the word that follows."""
    num_targets = len(tokens) - 1
    starts = range(0, num_targets, length)
    return [tokens[s : min(s + length, num_targets) + 1].long() for s in starts]


@pytest.mark.parametrize("config", [LSTM, TRANSFORMER])
@pytest.mark.parametrize("split", ["validation", "test", "train"])
def test_perplexity_is_exp_of_the_mean_over_every_word(make, split, config):
    task = make(config)
    model, tokens = build(task), getattr(task.corpus, split)
    # 3 streams (eval_batch_size), or blocks of 5: the padding of a short end must not count
    length = math.ceil((len(tokens) - 1) / 3) if config is LSTM else 5
    losses = [loss for piece in pieces(tokens, length) for loss in word_losses(model, piece)]
    assert len(losses) == len(tokens) - 1
    totals = metrics_of(task, model, split)
    assert totals["count"] == len(tokens) - 1
    metrics = task.metrics(totals)
    assert metrics["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))


@pytest.mark.parametrize("model", [LSTM, TRANSFORMER])
def test_processes_together_measure_what_one_measures(make, model):
    task = make(model)
    net = build(task)
    alone = metrics_of(task, net, "test")
    parts = [metrics_of(task, net, "test", rank=rank, world_size=2) for rank in range(2)]
    summed = {name: sum(part[name] for part in parts) for name in alone}
    assert summed == pytest.approx(alone, rel=1e-6)


def test_more_streams_than_words_are_cut_down(make):
    task = make(LSTM, eval_batch_size=500)
    assert metrics_of(task, build(task), "test")["count"] == len(task.corpus.test) - 1


@pytest.mark.parametrize("num_micro", [1, 2])
def test_training_windows_continue_from_the_state_of_their_own_micro_batch(make, num_micro):
    task = make(LSTM)
    model, batches = build(task), task.train_batches(num_micro=num_micro)
    tokens, rows = task.corpus.train.long(), (len(task.corpus.train) - 1) // 4
    columns = [tokens[c * rows : (c + 1) * rows + 1] for c in range(4)]
    losses = torch.tensor([word_losses(model, column) for column in columns])  # (4, rows)
    for epoch in range(2):  # the second one starts from zero states again
        for step in range(batches.steps_per_epoch):
            for micro in range(num_micro):
                batch = batches.batch_at(epoch * batches.steps_per_epoch + step, micro)
                loss, sums = task.loss(model, batch)
                own = slice(4 * micro // num_micro, 4 * (micro + 1) // num_micro)
                expected = losses[own, 5 * step : 5 * (step + 1)]
                assert sums["count"].item() == expected.numel()
                assert loss.item() == pytest.approx(expected.mean().item(), rel=1e-4)


def test_gradients_stop_at_the_border_of_a_window(make):
    task = make(LSTM)
    model, batches = build(task), task.train_batches()
    for step in range(2):
        loss, _ = task.loss(model, batches.batch_at(step))
        loss.backward()  # would raise the second time if the first window were still attached
    assert not any(part.requires_grad for state in task.carried.values() for part in state)


def test_the_state_goes_through_a_checkpoint(make):
    task, other = make(LSTM), make(LSTM)
    model, batches = build(task), task.train_batches(num_micro=2)
    for micro in range(2):
        task.loss(model, batches.batch_at(0, micro))
    plain, tensors = split_state(task.state_dict())
    other.load_state_dict(join_state(json.loads(json.dumps(plain)), tensors))
    other.to("cpu")
    for micro in range(2):
        batch = batches.batch_at(1, micro)
        assert other.loss(model, batch)[0].item() == task.loss(model, batch)[0].item()


def test_evaluation_does_not_disturb_training(make):
    task = make(LSTM)
    model, batches = build(task), task.train_batches()
    task.loss(model, batches.batch_at(0))
    before = {micro: [part.clone() for part in state] for micro, state in task.carried.items()}
    evaluate(task, model, "validation", Precision(), device=torch.device("cpu"))
    assert task.carried.keys() == before.keys()
    for micro, state in before.items():
        assert all(torch.equal(a, b) for a, b in zip(state, task.carried[micro], strict=True))


def test_blocks_carry_nothing(make):
    task = make(TRANSFORMER)
    task.loss(build(task), task.train_batches().batch_at(0))
    assert task.state_dict() == {"carried": {}}


def test_the_model_gets_the_vocabulary_unless_its_options_say_otherwise(make):
    task = make(LSTM)
    assert task.build_model().vocab_size == len(task.corpus.vocabulary) == 8  # 7 and <eos>
    more = ModelConfig(name="lstm_lm", options={**LSTM.options, "vocab_size": 50})
    assert make(more).build_model().vocab_size == 50


def test_a_smaller_vocabulary_makes_a_smaller_model(make):
    task = make(LSTM, vocabulary=4)
    assert len(task.corpus.vocabulary) == 4
    assert int(task.corpus.train.max()) == 3
    assert build(task).decoder.out_features == 4


@pytest.mark.parametrize("config", [LSTM, TRANSFORMER])
def test_models_are_called_with_sequences_first_and_counted_by_sequence(make, config):
    task = make(config)
    batch = task.train_batches(rank=1, world_size=2).batch_at(0)
    (tokens,) = task.inputs(batch)
    assert tokens.shape == (2, 5)  # half of the 4 streams or blocks, 5 words each
    assert task.num_samples(batch) == 4
    assert task.example_inputs(batch)[0].shape == (2, 5)
    targets = batch.targets.t() if config is LSTM else batch.targets
    assert torch.equal(tokens[:, 1:], targets[:, :-1])  # neighbours in the text
    task.build_model()(*task.inputs(batch))


def test_a_loss_beyond_what_exp_can_hold_is_still_a_number(make):
    metrics = make(LSTM).metrics({"loss": 1e6, "count": 1.0})
    assert math.isfinite(metrics["perplexity"])


def test_training_lowers_the_perplexity(make):
    options = {"embedding_dim": 16, "hidden_dim": 16, "dropout": 0.0}
    task = make(ModelConfig(name="lstm_lm", options=options))
    model, batches = build(task), task.train_batches()
    before = task.metrics(metrics_of(task, model, "train"))["perplexity"]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    task.start_pass()
    for batch in batches.from_step(0, 40):
        loss, _ = task.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    after = task.metrics(metrics_of(task, model, "train"))["perplexity"]
    assert before == pytest.approx(8, rel=0.1)  # 8 words, all as likely
    assert after < 0.7 * before
