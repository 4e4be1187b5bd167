"""Weights on their grids, by parameter."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.export.freeze import freeze
from bitcycle.export.state_file import state_on_grids, weights_on_grids
from tests.export.models import conv_net, images, ready


def test_weights_are_where_the_rule_puts_them_and_nothing_else_moves():
    model = ready(conv_net(), images(), "w3a8")
    state = state_on_grids(freeze(model, (images(),)))
    rule, levels = bc.quantizers.SBM(), torch.tensor(7)
    for name, value in bc.convert.float_state_dict(model).items():
        if name in ("0.weight", "3.weight", "6.weight"):
            within = rule.range_of("weight", value, (0,))
            value = rule.encode("weight", value, levels, within).dequantize()
        torch.testing.assert_close(state[name], value.detach(), rtol=1e-6, atol=1e-7)


def test_a_float_model_with_this_state_computes_what_the_weights_bits_do():
    model = ready(conv_net(), images(), "w4a8")
    state = state_on_grids(freeze(model, (images(),)))
    plain = conv_net().eval()
    plain.load_state_dict(state)
    with bc.at_precision(model, "w4"):
        torch.testing.assert_close(plain(images()), model(images()), rtol=1e-5, atol=1e-6)


def test_a_transposed_convolution_keeps_its_shape():
    x = torch.randn(2, 3, 5, 5)
    model = ready(nn.Sequential(nn.ConvTranspose2d(3, 4, 2)), x)
    weight = weights_on_grids(freeze(model, (x,)))["0.weight"]
    assert tuple(weight.values().shape) == (3, 4, 2, 2)
    assert weight.grid.scale.numel() == 4


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def test_a_weight_that_another_module_reads_in_float_is_refused():
    x = torch.tensor([1, 2])
    with pytest.raises(ValueError, match="'embed.weight' is shared"):
        weights_on_grids(freeze(ready(Tied(), x), (x,)))
