"""Conversion: what is converted, twice and in parts, the ends of a model, and back."""

import copy
import pickle

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.quantizers import QUANTIZERS, SBM, DoReFa
from bitcycle.quantizers.base import make_quantizer
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


def test_patterns_choose_what_is_converted():
    assert converted_names(bc.quantize_model(net(), skip=["head"])) == ["conv"]
    assert converted_names(bc.quantize_model(net(), skip=["head.2"])) == ["conv", "head.0"]
    assert converted_names(bc.quantize_model(net(), skip=["*.0", nn.Conv2d])) == ["head.2"]
    assert converted_names(bc.quantize_model(net(), only=["head"])) == ["head.0", "head.2"]
    model = bc.quantize_model(net(), only=[nn.Linear], skip=["head.0"])
    assert converted_names(model) == ["head.2"]


def test_a_pattern_that_matches_nothing_lists_the_layers_and_converts_nothing():
    for keyword in ("skip", "only"):
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


def test_bad_arguments_are_errors_before_anything_is_converted():
    for arguments, message in (
        ({"quantizer": "smb"}, r"unknown quantizer 'smb'; known: .*did you mean 'sbm'\?"),
        ({"quantizer": 4}, "a quantizer is a name or an object"),
        ({"kernel": "simulat"}, r"unknown kernel 'simulat'; .*did you mean 'simulate'\?"),
        ({"max_bits": 0}, "max_bits must be None .* got 0"),
        ({"skip": "fc"}, r"skip takes a list of patterns, got 'fc'; write \['fc'\]"),
    ):
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


def test_a_second_conversion_keeps_bits_and_ranges_and_takes_the_new_settings():
    model = bc.quantize_model(linears(4, 4))
    bc.set_precision(model, "w4a4e8")
    model(randn(8, 4))
    ranges = model[0].act_range.clone()
    bc.quantize_model(model, bc.quantizers.SBM(error_rounding="nearest"), max_bits=8)
    assert str(bc.get_precision(model)) == "w4a4e8"
    assert torch.equal(model[0].act_range, ranges)
    assert model[0].settings.quantizer.error_rounding == "nearest"
    with pytest.raises(ValueError, match="max_bits=8"):
        bc.set_precision(model, "w9")


def test_a_second_conversion_adds_what_was_left_out():
    model = bc.quantize_model(net(), only=["conv"], seed=5)
    bc.set_precision(model, "w4a4e8")
    bc.quantize_model(model, only=["head"])
    assert [str(layer.precision) for layer in (model.conv, model.head[0])] == ["w4a4e8", "fp32"]
    assert [layer.settings.seed for layer in (model.conv, model.head[0])] == [5, 0]


def test_parts_that_are_converted_one_by_one_become_one_model():
    model = nn.Sequential(linears(4, 4), linears(4, 4))
    bc.quantize_model(model[1])
    bc.quantize_model(model)
    layers = (model[0][0], model[1][0])
    assert [layer.settings.name for layer in layers] == ["0.0", "1.0"]
    assert layers[0].shared is layers[1].shared


def test_converting_a_part_again_keeps_the_full_name():
    model = bc.quantize_model(net())
    bc.quantize_model(model.head)
    assert model.head[0].settings.name == "head.0"


def test_bits_of_a_role_without_a_rule_do_not_exceed_max_bits():
    model = bc.quantize_model(linears(4, 4), max_bits=8)
    bc.set_precision(model, "w8a8e8g16")  # sbm has no rule for grad
    assert str(bc.get_precision(model)) == "w8a8e8g16"


def test_a_limit_below_the_present_bits_is_refused_and_changes_nothing():
    model = bc.quantize_model(linears(4, 4, 4))
    bc.set_precision(model, {"1": "w8a8e8"})
    with pytest.raises(ValueError, match=r"layer '1' .*max_bits=4"):
        bc.quantize_model(model, max_bits=4)
    assert [layer.settings.max_bits for layer in model] == [None, None]
    assert model[1].quantized_roles == ("weight", "act", "error")
    bc.set_precision(model, "w8a8e8")


PUBLISHED = {
    "sbm": "quantized", "sbm_full": "quantized", "dorefa": "float32", "wageubn": "float32",
    "absmax": "quantized", "pow2": "quantized",
}  # fmt: skip


def kinds(model):
    return [type(module).__name__ for module in model]


def test_every_quantizer_has_its_published_default():
    assert {name: make_quantizer(name).first_last for name in QUANTIZERS} == PUBLISHED


def test_both_policies_are_a_choice_for_every_quantizer():
    for name in PUBLISHED:
        kept = bc.quantize_model(linears(4, 4, 4, 4), QUANTIZERS[name](first_last="float32"))
        assert kinds(kept) == ["Linear", "QuantizedLinear", "Linear"]
        every = bc.quantize_model(linears(4, 4, 4, 4), QUANTIZERS[name](first_last="quantized"))
        assert kinds(every) == ["QuantizedLinear"] * 3


def test_the_audit_says_why_they_are_float():
    model = bc.quantize_model(linears(4, 4, 4, 4), "dorefa")
    reasons = [row.reason for row in bc.audit(model).float_rows]
    assert reasons == [
        "first layer: DoReFa leaves it float32 (first_last)",
        "last layer: DoReFa leaves it float32 (first_last)",
    ]


def test_skipping_them_by_name_changes_nothing():
    model = bc.quantize_model(linears(4, 4, 4, 4, 4), "dorefa", skip=["0", "3"])
    assert kinds(model) == ["Linear", "QuantizedLinear", "QuantizedLinear", "Linear"]


def test_a_model_of_ends_only_is_an_error_with_the_way_out():
    for widths in ((4, 4), (4, 4, 4)):
        with pytest.raises(ValueError, match=r"DoReFa\(first_last='quantized'\) converts them too"):
            bc.quantize_model(linears(*widths), "dorefa")


def test_ends_converted_before_become_float_unless_skipped():
    model = bc.quantize_model(linears(4, 4, 4, 4))
    bc.quantize_model(model, "dorefa")
    assert kinds(model) == ["Linear", "QuantizedLinear", "Linear"]
    model = bc.quantize_model(linears(4, 4, 4, 4), SBM())
    bc.quantize_model(model, "dorefa", skip=["0", "2"])
    assert [type(layer.settings.quantizer).__name__ for layer in model] == ["SBM", "DoReFa", "SBM"]


def test_products_of_activations_are_no_ends():
    model = nn.Sequential(nn.Linear(4, 4), Attention(), bc.MatMul())
    bc.quantize_model(model, "dorefa")
    audit = bc.audit(model)
    assert [row.name for row in audit.float_rows] == ["0", "1.qkv"]


def test_parts_of_a_first_layer_are_float_with_it():
    model = nn.Sequential(nn.MultiheadAttention(4, 2), nn.Linear(4, 4), nn.Linear(4, 4))
    bc.quantize_model(model, DoReFa())
    assert [row.name for row in bc.audit(model).converted_rows] == ["1"]


def test_the_audit_says_that_a_quantizer_has_no_codes():
    for kernel in ("auto", "int8", "simulate"):
        model = bc.quantize_model(linears(4, 4, 4, 4), "wageubn", kernel=kernel)
        row = bc.audit(model)["1"]
        expected = {
            "auto": ("simulate", "auto: WAGEUBN has no integer codes"),
            "int8": (row.kernel, "multiplies floats: WAGEUBN has no integer codes"),
            "simulate": ("simulate", "asked for"),
        }[kernel]
        assert row.kernel == expected[0]
        assert row.reason.endswith(expected[1])
        bc.set_precision(model, "FW8/BW8")
        assert model(randn(2, 4)).isfinite().all()
        assert torch.equal(model.eval()(randn(2, 4)), model(randn(2, 4)))


def snapshot(model):
    """Types, attributes and tensors of every module."""
    return {
        name: (type(module), {k: repr(v) for k, v in module.__dict__.items()})
        for name, module in model.named_modules()
    }


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


def test_everything_is_as_it_was_before():
    for make in (net, Attention, encoder, lambda: linears(2, 2)):
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


def test_a_model_can_be_converted_after_being_converted_back():
    model = bc.quantize_model(linears(4, 4))
    bc.set_precision(model, "w4a4")
    model(randn(2, 4))
    bc.quantize_model(bc.unquantize_model(model))
    assert str(bc.get_precision(model)) == "fp32"
    assert bc.audit(model)["0"].is_observed is False
