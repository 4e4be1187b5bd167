"""Encoder layers of torch have an evaluation path that reads weights and skips the Linears."""

import copy

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests import naive_attention
from tests.toys import naive_linear, randn

BITS = 4


def encoder_layer(activation="relu"):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, activation=activation
    ).eval()


def naive_layer(layer, x, padding=None):
    """The layer in evaluation, with its two Linears and its attention on 4-bit grids."""
    hidden = None if padding is None else padding[:, None, None]
    attended = naive_attention.multihead(layer.self_attn, x, x, x, BITS, hidden)[0]
    x = layer.norm1(x + attended)
    hidden = layer.activation(naive_linear(x, layer.linear1, BITS))
    return layer.norm2(x + naive_linear(hidden, layer.linear2, BITS))


def converted(model):
    bc.set_precision(bc.quantize_model(model), f"FW{BITS}/BW8")
    return model


@pytest.mark.filterwarnings("ignore:.*never observed")
def test_an_encoder_layer_is_evaluated_at_its_bits():
    for activation in ("relu", "gelu"):
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            layer, x = encoder_layer(activation), randn(3, 5, 8)
            with mode():
                expected = naive_layer(layer, x)
                assert torch.allclose(converted(layer)(x), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*never observed")
def test_with_the_fast_path_the_bits_would_have_no_effect():
    layer, x = encoder_layer(), randn(3, 5, 8)
    fast = converted(copy.deepcopy(layer))
    fast.activation_relu_or_gelu = layer.activation_relu_or_gelu
    with torch.no_grad():
        assert torch.equal(fast(x), layer(x))
        assert not torch.allclose(layer(x), naive_layer(layer, x), atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*never observed", "ignore:The PyTorch API of nested tensors")
def test_an_encoder_is_evaluated_at_its_bits():
    for is_padded in (False, True):
        torch.manual_seed(1)
        model = nn.TransformerEncoder(encoder_layer(), 2).eval()
        x, padding = randn(3, 5, 8), None
        if is_padded:  # the float path packs such batches into a nested tensor
            padding = torch.zeros(3, 5, dtype=torch.bool)
            padding[1, 3:] = True
        with torch.no_grad():
            expected = x
            for layer in model.layers:
                expected = naive_layer(layer, expected, padding)
            float_output = model(x, src_key_padding_mask=padding)
            output = converted(model)(x, src_key_padding_mask=padding)
        assert torch.allclose(output, expected, atol=1e-5)
        assert not torch.allclose(output, float_output, atol=1e-3)


def test_an_encoder_without_converted_layers_keeps_its_fast_path():
    model = nn.ModuleDict({"encoder": encoder_layer(), "head": nn.Linear(8, 2)})
    before = model["encoder"].activation_relu_or_gelu
    bc.quantize_model(model, skip=["encoder"])
    assert model["encoder"].activation_relu_or_gelu == before != 0


def test_converting_back_restores_the_fast_path_even_after_two_conversions():
    layer = encoder_layer("gelu")
    before = layer.activation_relu_or_gelu
    bc.quantize_model(bc.quantize_model(layer))
    assert layer.activation_relu_or_gelu == 0
    bc.unquantize_model(layer)
    assert layer.activation_relu_or_gelu == before != 0
