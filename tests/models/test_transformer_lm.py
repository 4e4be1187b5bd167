"""Tests of the Transformer language model: sizes, causality, attention, tying."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from bitcycle.matmul import MatMul
from bitcycle.models import build_model
from bitcycle.models.transformer_lm import CausalSelfAttention, sinusoids

from .counting import num_parameters, on_meta


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


def test_a_later_token_does_not_change_earlier_logits():
    model = small().eval()
    (tokens,) = model.example_inputs(2)
    changed = tokens.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 20
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.isclose(before[:, 40:], after[:, 40:]).all(dim=-1).any()


def test_a_prefix_gets_the_logits_it_has_within_a_longer_text():
    model = small().eval()
    (tokens,) = model.example_inputs(2)
    torch.testing.assert_close(model(tokens[:, :7]), model(tokens)[:, :7])


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


def test_tied_weights_are_one_parameter():
    model = small()
    assert model.decoder.weight is model.embedding.weight
    assert num_parameters(small(tie=False)) - num_parameters(model) == 20 * 16


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


@pytest.mark.parametrize(("dim", "num_heads"), [(18, 4), (15, 3)])
def test_a_width_that_heads_or_sinusoids_cannot_share_is_an_error(dim, num_heads):
    message = rf"dim \({dim}\) must be even and a multiple of num_heads \({num_heads}\)"
    with pytest.raises(ValueError, match=message):
        small(dim=dim, num_heads=num_heads)


def test_dropout_acts_in_training_only():
    model = small()
    (tokens,) = model.example_inputs(2)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
