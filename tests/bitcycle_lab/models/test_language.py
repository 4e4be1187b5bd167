"""The LSTM and Transformer language models: sizes, state, causality, tying."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from bitcycle.matmul import MatMul
from bitcycle_lab.models import build_model
from bitcycle_lab.models.transformer_lm import CausalSelfAttention, sinusoids

from .counting import num_parameters, on_meta


def small_lstm(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "embedding_dim": 8, "hidden_dim": 8, "num_layers": 2}
    return build_model("lstm_lm", **(sizes | options))


def test_the_default_is_one_layer_of_800_units_over_10000_words():
    model = on_meta(partial(build_model, "lstm_lm"))
    # embedding 10000 x 800, LSTM 4 x 800 x (800 + 800 + 2), decoder 800 x 10000 + 10000
    assert num_parameters(model) == 8_000_000 + 5_126_400 + 8_010_000


def test_shapes_of_logits_and_state():
    model = small_lstm(embedding_dim=6, num_layers=3)
    logits, (h, c) = model(torch.zeros(2, 5, dtype=torch.long))
    assert (logits.shape, h.shape, c.shape) == ((2, 5, 20), (3, 2, 8), (3, 2, 8))


def test_two_halves_with_the_state_carried_over_equal_the_whole():
    model = small_lstm().eval()
    (tokens,) = model.example_inputs(3)
    whole, final = model(tokens)
    first, state = model(tokens[:, :17])
    second, state = model(tokens[:, 17:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(state, final)


def test_embedding_and_decoder_start_uniform_within_a_tenth():
    model = small_lstm(vocab_size=500)
    for weight in (model.embedding.weight, model.decoder.weight):
        assert 0.099 < weight.abs().max() <= 0.1
        assert weight.std().item() == pytest.approx(0.2 / 12**0.5, rel=0.03)
    assert torch.count_nonzero(model.decoder.bias) == 0


def small(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "dim": 16, "ffn_dim": 32, "num_layers": 2, "num_heads": 4}
    return build_model("transformer_lm", **(sizes | options))


def test_the_default_has_six_layers_of_512():
    model = on_meta(partial(build_model, "transformer_lm"))
    attention = 4 * (512 * 512 + 512)
    ffn = 512 * 2048 + 2048 + 2048 * 512 + 512
    assert num_parameters(model.layers[0]) == attention + ffn + 4 * 512
    assert num_parameters(model) == 24_035_328  # 10000 x 512 + 6 x 3152384 + 1024


def test_the_order_of_earlier_tokens_matters():
    model = small().eval()
    tokens = torch.tensor([[1, 2, 3], [2, 1, 3]])
    first, second = model(tokens)[:, -1]
    assert not torch.allclose(first, second)


def test_attention_equals_torchs():
    torch.manual_seed(0)
    attention = CausalSelfAttention(16, 4)
    x = torch.randn(2, 9, 16)
    q, k, v = (
        p(x).view(2, 9, 4, 4).transpose(1, 2) for p in (attention.q, attention.k, attention.v)
    )
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = attention.out(mixed.transpose(1, 2).reshape(2, 9, 16))
    torch.testing.assert_close(attention(x), expected)


def test_both_attention_products_of_each_layer_have_a_name():
    names = [name for name, module in small().named_modules() if isinstance(module, MatMul)]
    assert names == [
        "layers.0.attention.qk",
        "layers.0.attention.pv",
        "layers.1.attention.qk",
        "layers.1.attention.pv",
    ]


def test_logits_start_small_enough_for_a_loss_near_that_of_guessing():
    model = small(vocab_size=1000, dim=64, num_heads=4).eval()
    (tokens,) = model.example_inputs(4)
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert loss.item() == pytest.approx(6.9, abs=1.0)  # ln 1000


def test_positions_are_sines_and_cosines_of_falling_frequency():
    codes = sinusoids(3, 4, device="cpu")
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.01], [2.0, 0.02]])
    torch.testing.assert_close(codes, torch.cat([angles.sin(), angles.cos()], dim=1))


# -- both -----------------------------------------------------------------------------------------


def logits_of(model, tokens):
    output = model(tokens)
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("build", [small_lstm, small])
def test_a_later_token_does_not_change_earlier_logits(build):
    model = build().eval()
    (tokens,) = model.example_inputs(2)
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % 20
    before, after = logits_of(model, tokens), logits_of(model, changed)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


@pytest.mark.parametrize(("build", "dim"), [(small_lstm, 8), (small, 16)])
def test_tied_weights_are_one_parameter(build, dim):
    model = build(tie=True)
    assert model.decoder.weight is model.embedding.weight
    assert num_parameters(build(tie=False)) - num_parameters(model) == 20 * dim


@pytest.mark.parametrize("build", [small_lstm, small])
def test_dropout_acts_in_training_only_and_one_layer_gives_no_warning(build):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = build(num_layers=1)
    (tokens,) = model.example_inputs(2)
    assert not torch.equal(logits_of(model, tokens), logits_of(model, tokens))
    model.eval()
    assert torch.equal(logits_of(model, tokens), logits_of(model, tokens))
