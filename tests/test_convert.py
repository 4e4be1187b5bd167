"""quantize_model: in place, by class swap, on the layers that were meant."""

import copy
import pickle

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.nn.base import QuantizedLayer
from tests.toys import Attention, linears, naive_linear, net, randn


def converted_names(model):
    return [row.name for row in bc.audit(model).converted_rows]


class Renamed(nn.Linear):
    """A subclass that changes nothing about the product."""

    def describe(self):
        return f"{self.in_features} to {self.out_features}"


def test_the_model_itself_is_returned_with_the_same_parameters():
    model = net()
    parameters = dict(model.named_parameters())
    assert bc.quantize_model(model) is model
    assert all(model.get_parameter(name) is p for name, p in parameters.items())
    assert isinstance(model.conv, nn.Conv2d)
    assert isinstance(model.conv, QuantizedLayer)


def test_a_freshly_converted_model_is_bit_identical_to_the_float_one():
    model, x = net(), randn(5, 2, 6, 6)
    quantized = bc.quantize_model(copy.deepcopy(model))
    for m in (model, quantized):
        torch.manual_seed(0)
        m(x).square().sum().backward()
    assert str(bc.get_precision(quantized)) == "fp32"
    for a, b in zip(model.parameters(), quantized.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    assert torch.equal(model.eval()(x), quantized.eval()(x))


def test_an_optimizer_built_before_still_trains():
    model = linears(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bc.set_precision(bc.quantize_model(model), "FW4/BW8")
    before = model[0].weight.detach().clone()
    model(randn(8, 4)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)


def test_patterns_choose_what_is_converted():
    assert converted_names(bc.quantize_model(net(), skip=["head"])) == ["conv"]
    assert converted_names(bc.quantize_model(net(), skip=["head.2"])) == ["conv", "head.0"]
    assert converted_names(bc.quantize_model(net(), skip=["*.0", nn.Conv2d])) == ["head.2"]
    assert converted_names(bc.quantize_model(net(), only=["head"])) == ["head.0", "head.2"]
    model = bc.quantize_model(net(), only=[nn.Linear], skip=["head.0"])
    assert converted_names(model) == ["head.2"]


@pytest.mark.parametrize("keyword", ["skip", "only"])
def test_a_pattern_that_matches_nothing_lists_the_layers_and_converts_nothing(keyword):
    model = net()
    with pytest.raises(ValueError, match=f"{keyword}: .*'fc'.*layers: conv, head.0, head.2"):
        bc.quantize_model(model, **{keyword: ["conv", "fc"]})
    assert type(model.conv) is nn.Conv2d


def test_nothing_converted_is_an_error_that_says_why():
    with pytest.raises(ValueError, match=r"skip and only leave no layer; layers: 0"):
        bc.quantize_model(linears(2, 2), skip=["*"])
    with pytest.raises(ValueError, match=r"nothing to convert: .* no layer that multiplies"):
        bc.quantize_model(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match=r"0 \(no quantized layer for Bilinear\)"):
        bc.quantize_model(nn.Sequential(nn.Bilinear(2, 2, 2)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantizer": "smb"}, r"unknown quantizer 'smb'; known: .*did you mean 'sbm'\?"),
        ({"quantizer": 4}, "a quantizer is a name or an object"),
        ({"kernel": "simulat"}, r"unknown kernel 'simulat'; .*did you mean 'simulate'\?"),
        ({"max_bits": 0}, "max_bits must be None .* got 0"),
        ({"skip": "fc"}, r"skip takes a list of patterns, got 'fc'; write \['fc'\]"),
    ],
)
def test_bad_arguments_are_errors_before_anything_is_converted(arguments, message):
    model = net()
    with pytest.raises(ValueError, match=message):
        bc.quantize_model(model, **arguments)
    assert type(model.conv) is nn.Conv2d


def test_only_modules_can_be_converted():
    with pytest.raises(ValueError, match="takes an nn.Module, got list"):
        bc.quantize_model([linears(2, 2)])


def test_a_module_under_two_names_is_converted_once():
    layer = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": layer, "b": nn.Sequential(layer)})
    bc.quantize_model(model)
    assert converted_names(model) == ["a"]
    assert model["b"][0] is layer
    assert bc.audit(model)["a"].is_converted
    bc.set_precision(model, {"b": "w4"})
    assert str(layer.precision) == "w4"


def test_skipping_one_name_of_a_shared_module_skips_it():
    layer = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": layer, "b": nn.Sequential(layer), "c": nn.Linear(2, 2)})
    assert converted_names(bc.quantize_model(model, skip=["b"])) == ["c"]


def test_tied_weights_stay_tied_and_sum_their_gradients():
    model = linears(4, 4, 4)
    model[1].weight = model[0].weight
    bc.set_precision(bc.quantize_model(model), "w8a8e8")
    model(randn(8, 4)).square().sum().backward()
    assert model[0].weight is model[1].weight
    alone = copy.deepcopy(model)
    alone[1].weight = nn.Parameter(model[0].weight.detach().clone())
    alone.zero_grad()
    bc.set_precision(alone, "fp32")
    alone(randn(8, 4)).square().sum().backward()
    total = alone[0].weight.grad + alone[1].weight.grad
    assert torch.allclose(model[0].weight.grad, total, rtol=0.1, atol=0.1 * total.abs().max())


def test_an_embedding_tied_to_the_output_layer_still_works():
    embedding, decoder = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    decoder.weight = embedding.weight
    model = bc.quantize_model(nn.Sequential(embedding, decoder))
    bc.set_precision(model, "FW4/BW8")
    model(torch.tensor([1, 2])).sum().backward()
    assert model[1].weight is model[0].weight
    assert model[0].weight.grad.isfinite().all()


def test_a_subclass_that_keeps_forward_is_converted_and_pickles():
    model = nn.Sequential(Renamed(4, 2))
    bc.set_precision(bc.quantize_model(model), "w4a4")
    assert isinstance(model[0], Renamed)
    assert model[0].describe() == "4 to 2"
    again = pickle.loads(pickle.dumps(model))
    x = randn(3, 4)
    assert type(again[0]) is type(model[0])
    assert torch.equal(again(x), model(x))
    assert torch.allclose(model(x), naive_linear(x, model[0], 4), atol=1e-6)
    assert type(bc.unquantize_model(model)[0]) is Renamed


def test_the_modules_of_an_attention_convert_with_their_products():
    model = bc.quantize_model(Attention())
    assert converted_names(model) == ["qkv", "scores", "mix"]


def test_the_quantizer_is_a_name_or_an_object():
    model = bc.quantize_model(linears(2, 2), bc.quantizers.SBM(error_rounding="nearest"))
    assert model[0].settings.quantizer.error_rounding == "nearest"
    assert bc.quantize_model(linears(2, 2))[0].settings.quantizer == bc.quantizers.SBM()
