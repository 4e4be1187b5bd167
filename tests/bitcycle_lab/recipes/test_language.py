"""Settings of CPT's language models and of the follow-up's LSTM."""

from bitcycle_lab.recipes import list_recipes, recipe
from bitcycle_lab.train.config import steps_of

INFOS = {info.name: info for info in list_recipes()}


def test_the_lstm():
    config = recipe("ptb-lstm-cpt-5-8-8")
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.momentum) == ("sgd", 20, 0)
    assert (config.lr.policy, config.lr.gamma, config.lr.patience) == ("plateau", 0.25, 0)
    assert (config.clip_norm, config.epochs) == (0.25, 40)
    assert (config.data.batch_size, config.data.sequence_length) == (20, 35)
    assert config.model.options["num_layers"] == 2
    assert config.model.options["dropout"] == 0.5
    assert steps_of(config.eval.every, 40 * 1328) == 1328  # the rate looks at every epoch
    assert (config.precision.forward, config.precision.backward) == ("CR:5-8:32", 8)
    assert INFOS[config.name].results[0].value == 96.39


def test_the_lstm_of_the_follow_up():
    sizes = {"embedding_dim": 800, "hidden_dim": 800, "num_layers": 1, "dropout": 0.5}
    assert recipe("ptb-lstm800").model.options == sizes
    assert INFOS["ptb-lstm800"].cycles == 8


def test_the_transformer():
    config = recipe("wikitext103-transformer-cpt-4-8-8")
    assert (config.optimizer.lr, config.optimizer.betas) == (5e-4, (0.9, 0.98))
    assert config.optimizer.weight_decay == 0.01
    assert (config.lr.policy, config.lr.warmup, config.steps) == ("inverse_sqrt", 4000, 50_000)
    assert config.data.sequence_length == 512
    assert 32_000 <= config.data.batch_size * config.data.sequence_length <= 64_000
    assert config.data.batch_size % config.accumulate == 0
    assert (config.precision.forward, config.precision.backward) == ("CR:4-8:32", 8)
    assert INFOS[config.name].results[0].value == 30.22
