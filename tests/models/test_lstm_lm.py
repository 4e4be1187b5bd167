"""Tests of the LSTM language model: sizes, state, initialisation, tying."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch

from bitcycle.models import build_model

from .counting import num_parameters, on_meta


def small(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "embedding_dim": 8, "hidden_dim": 8, "num_layers": 2}
    return build_model("lstm_lm", **(sizes | options))


def test_the_default_is_one_layer_of_800_units_over_10000_words():
    model = on_meta(partial(build_model, "lstm_lm"))
    # embedding 10000 x 800, LSTM 4 x 800 x (800 + 800 + 2), decoder 800 x 10000 + 10000
    assert num_parameters(model) == 8_000_000 + 5_126_400 + 8_010_000


def test_shapes_of_logits_and_state():
    model = small(embedding_dim=6, num_layers=3)
    logits, (h, c) = model(torch.zeros(2, 5, dtype=torch.long))
    assert (logits.shape, h.shape, c.shape) == ((2, 5, 20), (3, 2, 8), (3, 2, 8))


def test_two_halves_with_the_state_carried_over_equal_the_whole():
    model = small().eval()
    (tokens,) = model.example_inputs(3)
    whole, final = model(tokens)
    first, state = model(tokens[:, :17])
    second, state = model(tokens[:, 17:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(state, final)


def test_without_the_state_the_second_half_differs():
    model = small().eval()
    (tokens,) = model.example_inputs(3)
    assert not torch.allclose(model(tokens)[0][:, 17:], model(tokens[:, 17:])[0])


def test_a_later_token_does_not_change_earlier_logits():
    model = small().eval()
    (tokens,) = model.example_inputs(2)
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % 20
    before, after = model(tokens)[0], model(changed)[0]
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_embedding_and_decoder_start_uniform_within_a_tenth():
    model = small(vocab_size=500)
    for weight in (model.embedding.weight, model.decoder.weight):
        assert 0.099 < weight.abs().max() <= 0.1
        assert weight.std().item() == pytest.approx(0.2 / 12**0.5, rel=0.03)
    assert torch.count_nonzero(model.decoder.bias) == 0


def test_tied_weights_are_one_parameter():
    model = small(tie=True)
    assert model.decoder.weight is model.embedding.weight
    assert num_parameters(small()) - num_parameters(model) == 20 * 8


def test_tying_unequal_sizes_is_an_error():
    with pytest.raises(ValueError, match=r"embedding_dim \(6\) equal to hidden_dim \(8\)"):
        small(embedding_dim=6, tie=True)


def test_dropout_acts_in_training_only_and_one_layer_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = small(num_layers=1)
    (tokens,) = model.example_inputs(2)
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    model.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])
