"""Products from codes compute what the evaluated model computes."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.export.freeze import freeze
from bitcycle.export.onnx_layers import write_products
from tests.export.models import assert_same, conv_net, encoder, images, ready, tokens

REAL, INTEGER = bc.quantizers.SBM(), bc.quantizers.SBM(zero="integer")


@pytest.mark.parametrize("bits", ["w8a8", "w4a4", "w3a5", "w8", "a8"])
@pytest.mark.parametrize(
    "rule", [REAL, INTEGER, "absmax", "pow2"], ids=["real", "integer", "absmax", "pow2"]
)
def test_a_model_that_multiplies_from_codes_computes_the_same(bits, rule):
    model = ready(conv_net(), images(), bits, rule)
    frozen = freeze(model, (images(),))
    write_products(frozen)
    other = 1.5 * images(9)  # beyond the observed ranges
    assert_same(frozen.model(other), model(other))


@pytest.mark.parametrize("rule", [REAL, INTEGER], ids=["real", "integer"])
def test_an_attention_that_multiplies_from_codes_computes_the_same(rule):
    model = ready(encoder(), tokens(), "w8a8", rule)
    frozen = freeze(model, (tokens(),))
    write_products(frozen)
    torch.testing.assert_close(frozen.model(tokens()), model(tokens()), rtol=1e-4, atol=1e-5)


def ways(rule, bits):
    return dict(write_products(freeze(ready(conv_net(), images(), bits, rule), (images(),))))


def test_whole_zero_points_map_one_to_one():
    assert ways(INTEGER, "w8a8") == {
        "inputs of 8 bits: one to one": 3,
        "weights of 8 bits: one to one": 3,
    }


def test_a_real_offset_is_said_unless_it_is_zero():
    assert ways(REAL, "w8a4") == {
        "inputs of 4 bits: explicit Add of the real offset": 1,
        "inputs of 4 bits: one to one": 2,  # after a ReLU: the minimum is 0
        "weights of 8 bits: explicit Add of the real offset": 3,
    }


def test_other_widths_are_clipped_and_carried_in_8_bits():
    assert ways(INTEGER, "w3a6") == {
        "inputs of 6 bits: one to one, carried in 8 bits, clipped first": 3,
        "weights of 3 bits: one to one, carried in 8 bits": 3,
    }


def test_what_onnx_cannot_say_is_refused():
    with pytest.raises(ValueError, match="layer '0' has 9 bits, and ONNX files"):
        ways(REAL, "w9a8")
    x = torch.randn(2, 4, 5, 5)
    grouped = ready(nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=2)), x)
    with pytest.raises(ValueError, match="grouped transposed convolution"):
        write_products(freeze(grouped, (x,)))
