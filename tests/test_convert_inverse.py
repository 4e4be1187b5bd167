"""unquantize_model is the exact inverse."""

import copy

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests.toys import Attention, linears, net, randn


def snapshot(model):
    """Types, attributes and tensors of every module."""
    return {
        name: (type(module), {k: repr(v) for k, v in module.__dict__.items()})
        for name, module in model.named_modules()
    }


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


@pytest.mark.parametrize("make", [net, Attention, encoder, lambda: linears(2, 2)])
def test_everything_is_as_it_was_before(make):
    torch.manual_seed(0)
    model = make().eval()
    before, keys = snapshot(model), list(model.state_dict())
    parameters = list(model.parameters())
    bc.quantize_model(model)
    bc.set_precision(model, "FW4/BW8")
    assert snapshot(model) != before
    assert bc.unquantize_model(model) is model
    assert snapshot(model) == before
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))


def test_outputs_are_those_of_the_float_model_again():
    model, x = net().eval(), randn(4, 2, 6, 6)
    expected = model(x)
    bc.set_precision(bc.quantize_model(model), "w2a2")
    with pytest.warns(bc.BitcycleWarning, match="never observed"):
        assert not torch.equal(model(x), expected)
    assert torch.equal(bc.unquantize_model(model)(x), expected)


def test_a_list_of_ddp_exceptions_that_was_there_stays():
    model = linears(2, 2)
    model._ddp_params_and_buffers_to_ignore = ["z", "a"]
    bc.unquantize_model(bc.quantize_model(bc.quantize_model(model)))
    assert model._ddp_params_and_buffers_to_ignore == ["z", "a"]


def test_a_model_without_quantized_layers_is_an_error():
    with pytest.raises(ValueError, match="no quantized layer: nothing to convert back"):
        bc.unquantize_model(linears(2, 2))


def test_a_copy_is_converted_back_on_its_own():
    model = bc.quantize_model(linears(2, 2))
    other = bc.unquantize_model(copy.deepcopy(model))
    assert type(other[0]) is nn.Linear
    bc.set_precision(model, "w4")  # the original is still converted


def test_a_model_can_be_converted_after_being_converted_back():
    model = bc.quantize_model(linears(4, 4))
    bc.set_precision(model, "w4a4")
    model(randn(2, 4))
    bc.quantize_model(bc.unquantize_model(model))
    assert str(bc.get_precision(model)) == "fp32"
    assert bc.audit(model)["0"].is_observed is False
