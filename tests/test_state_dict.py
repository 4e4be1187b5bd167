"""State between float and converted models, files, devices and dtypes."""

import io

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests.toys import Attention, linears, naive_linear, net, randn


def trained(precision="w4a4e8"):
    """A converted net whose ranges were observed on one batch."""
    model = bc.quantize_model(net())
    bc.set_precision(model, precision)
    model(randn(8, 2, 6, 6)).sum().backward()
    return model


def test_the_float_state_loads_strictly_into_the_float_model():
    model, other = trained(), net(seed=1)
    assert list(bc.float_state_dict(model)) == list(other.state_dict())
    other.load_state_dict(bc.float_state_dict(model), strict=True)
    assert torch.equal(other.conv.weight, model.conv.weight)
    assert bc.float_state_dict(model)._metadata["norm"] == {"version": 2}


def test_the_float_state_of_a_wrapped_model_has_no_prefix():
    for wrap in (nn.DataParallel, lambda m: torch.compile(m, backend="eager")):
        assert list(bc.float_state_dict(wrap(trained()))) == list(net().state_dict())


def test_a_shared_layer_has_its_float_state_under_both_names():
    layer = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": layer, "b": nn.Sequential(layer)})
    keys = list(model.state_dict())
    assert list(bc.float_state_dict(bc.quantize_model(model))) == keys


def test_a_converted_state_round_trips_with_its_ranges_and_without_bits():
    model, other = trained(), bc.quantize_model(net(seed=1))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True), strict=True)
    assert str(bc.get_precision(other)) == "fp32"
    assert bc.audit(other)["conv"].is_observed
    x = randn(4, 2, 6, 6, seed=3)
    with bc.at_precision(other, "w4a4e8"):
        assert torch.equal(other.eval()(x), model.eval()(x))


def test_a_meta_model_is_converted_scheduled_and_then_materialized():
    with torch.device("meta"):
        model = bc.quantize_model(Attention())
    bc.set_precision(model, "w4a4e8")
    model.to_empty(device="cpu")
    source = Attention()
    model.load_state_dict(source.state_dict(), strict=True)
    bc.set_precision(bc.quantize_model(source), "w4a4e8")
    x = randn(2, 3, 4)
    assert torch.equal(model(x), source(x))
    assert bc.audit(model)["scores"].is_observed


def test_a_product_without_parameters_lives_where_the_model_does():
    model = bc.quantize_model(Attention().to("meta"))
    assert {buffer.device.type for buffer in model.buffers()} == {"meta"}


@pytest.mark.filterwarnings("ignore:.*never observed")
def test_averaging_buffers_does_not_average_bits():
    model, x = bc.quantize_model(linears(4, 4)), randn(5, 4)
    bc.set_precision(model, "w4a4")
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    for bits in (8, 8, 2):
        bc.set_precision(model, f"w{bits}a{bits}")
        average.update_parameters(model)
    assert str(bc.get_precision(average)) == "w4a4"
    assert torch.allclose(average.eval()(x), naive_linear(x, model[0], 4), atol=1e-6)
