"""Conversion: what is converted, twice and in parts, the ends of a model, and back."""

import copy
import io
import logging
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, prune

import bitcycle as bc
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.quantizers import QUANTIZERS, SBM, DoReFa
from bitcycle.quantizers.base import make_quantizer
from tests.bitcycle import naive_attention
from tests.bitcycle.toys import Attention, linears, naive_linear, net, randn


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


def test_a_pattern_that_matches_nothing_is_an_error_and_converts_nothing():
    for keyword in ("skip", "only"):
        model = net()
        with pytest.raises(ValueError, match=f"{keyword}: .*'fc'"):
            bc.quantize_model(model, **{keyword: ["conv", "fc"]})
        assert type(model.conv) is nn.Conv2d


def test_nothing_converted_is_an_error_that_says_why():
    for model, skip, named in (
        (linears(2, 2), ["*"], "skip"),
        (nn.Sequential(nn.ReLU()), [], "no layer"),
        (nn.Sequential(nn.Bilinear(2, 2, 2)), [], "Bilinear"),
    ):
        with pytest.raises(ValueError, match=named):
            bc.quantize_model(model, skip=skip)


def test_bad_arguments_are_errors_before_anything_is_converted():
    for arguments, named in (
        ({"quantizer": "smb"}, "did you mean 'sbm'"),
        ({"quantizer": 4}, "4"),
        ({"kernel": "simulat"}, "did you mean 'simulate'"),
        ({"max_bits": 0}, "max_bits .*0"),
        ({"max_bits": True}, "max_bits .*True"),
        ({"max_bits": "nvfp4"}, "max_bits .*'nvfp4'"),
        ({"max_bits": bc.Precision.parse("nvfp4").weight}, "max_bits .*nvfp4"),
        ({"skip": "fc"}, "'fc'"),
    ):
        model = net()
        with pytest.raises(ValueError, match=named):
            bc.quantize_model(model, **arguments)
        assert type(model.conv) is nn.Conv2d
    with pytest.raises(ValueError, match="list"):
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
    assert str(model[0].precision) == "w8a8e8g16"


def test_a_limit_below_the_present_bits_is_refused_and_changes_nothing():
    model = bc.quantize_model(linears(4, 4, 4))
    bc.set_precision(model, {"1": "w8a8e8"})
    with pytest.raises(ValueError, match="'1' .*max_bits=4"):
        bc.quantize_model(model, max_bits=4)
    assert [layer.settings.max_bits for layer in model] == [None, None]
    assert model[1].quantized_roles == ("weight", "act", "error")
    bc.set_precision(model, "w8a8e8")


PUBLISHED = {
    "sbm": "quantized", "sbm_full": "quantized", "dorefa": "float32", "wageubn": "float32",
    "absmax": "quantized", "pow2": "quantized", "fp8": "quantized", "mx": "quantized",
    "nvfp4": "quantized",
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


def test_skipping_them_by_name_changes_nothing():
    model = bc.quantize_model(linears(4, 4, 4, 4, 4), "dorefa", skip=["0", "3"])
    assert kinds(model) == ["Linear", "QuantizedLinear", "QuantizedLinear", "Linear"]


def test_a_model_of_ends_only_is_an_error_with_the_way_out():
    for widths in ((4, 4), (4, 4, 4)):
        with pytest.raises(ValueError, match="first_last='quantized'"):
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
    for kernel in ("auto", "native", "simulate"):
        model = bc.quantize_model(linears(4, 4, 4, 4), "wageubn", kernel=kernel)
        row = bc.audit(model)["1"]
        expected = {
            "auto": ("simulate", "auto: WAGEUBN has no integer codes"),
            "native": (row.kernel, "multiplies floats: WAGEUBN has no integer codes"),
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


def test_a_list_of_ddp_exceptions_that_was_there_stays():
    model = linears(2, 2)
    model._ddp_params_and_buffers_to_ignore = ["z", "a"]
    bc.unquantize_model(bc.quantize_model(bc.quantize_model(model)))
    assert model._ddp_params_and_buffers_to_ignore == ["z", "a"]


def test_a_model_without_quantized_layers_is_an_error():
    with pytest.raises(ValueError, match="no quantized layer"):
        bc.unquantize_model(linears(2, 2))


def test_a_model_can_be_converted_after_being_converted_back():
    model = bc.quantize_model(linears(4, 4))
    bc.set_precision(model, "w4a4")
    model(randn(2, 4))
    bc.quantize_model(bc.unquantize_model(model))
    assert str(bc.get_precision(model)) == "fp32"
    assert bc.audit(model)["0"].is_observed is False


# -- what is left float, and the words the audit has for it ---------------------------------------


class OwnForward(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


class OwnConvolution(nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, 2 * weight, bias)


def old_style(function, module):
    with warnings.catch_warnings():  # deprecated, and in use
        warnings.simplefilter("ignore")
        return function(module)


def patched():
    layer = nn.Linear(4, 4)
    layer.forward = lambda input: F.linear(input, layer.weight)
    return layer


CASES = {
    "overridden forward": (lambda: OwnForward(4, 4), "OwnForward overrides forward"),
    "overridden _conv_forward": (
        lambda: OwnConvolution(1, 1, 1),
        "OwnConvolution overrides _conv_forward",
    ),
    "replaced forward": (patched, "forward was replaced on this instance"),
    "lazy": (lambda: nn.LazyLinear(4), "lazy: run one batch"),
    "weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), "parametrized"),
    "spectral_norm": (lambda: parametrizations.spectral_norm(nn.Conv2d(1, 1, 1)), "parametrized"),
    "old weight_norm": (
        lambda: old_style(nn.utils.weight_norm, nn.Linear(4, 4)),
        "computed by a hook",
    ),
    "old weight_norm, convolution": (
        lambda: old_style(nn.utils.weight_norm, nn.Conv2d(1, 1, 1)),
        "computed by a hook",
    ),
    "old spectral_norm": (
        lambda: old_style(nn.utils.spectral_norm, nn.Conv1d(1, 1, 1)),
        "computed by a hook",
    ),
    "pruned": (lambda: prune.random_unstructured(nn.Linear(4, 4), "weight", 1), "by a hook"),
    "scripted": (lambda: old_style(torch.jit.script, nn.Linear(4, 4)), "scripted"),
    "bilinear": (lambda: nn.Bilinear(2, 2, 2), "no quantized layer for Bilinear"),
    "recurrent": (
        lambda: nn.utils.parametrizations.weight_norm(nn.LSTM(2, 2), "weight_hh_l0"),
        "parametrized",
    ),
}


def test_it_is_not_converted_and_the_audit_says_why():
    for case in CASES:
        make, reason = CASES[case]
        module = make()
        kind = type(module)
        model = bc.quantize_model(nn.Sequential(module, nn.Linear(4, 4)))
        assert type(model[0]) is kind
        row = bc.audit(model)["0"]
        assert not row.is_converted
        assert reason in row.reason
        assert bc.audit(model)["1"].is_converted


def test_alone_it_is_an_error_with_the_reason():
    for case in CASES:
        make, reason = CASES[case]
        with pytest.raises(ValueError, match=reason):
            bc.quantize_model(nn.Sequential(make()))


def test_a_lazy_layer_is_converted_after_its_first_batch():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyConv2d(2, 1))
    model[0](randn(2, 3))
    model[1](randn(2, 3, 4, 4))
    bc.quantize_model(model)
    assert [row.type for row in bc.audit(model).converted_rows] == ["Linear", "Conv2d"]


def test_a_pruned_layer_is_converted_once_the_pruning_is_made_permanent():
    layer = prune.random_unstructured(nn.Linear(4, 4), "weight", 1)
    prune.remove(layer, "weight")
    assert bc.audit(bc.quantize_model(nn.Sequential(layer)))["0"].is_converted


class OwnAttention(nn.MultiheadAttention):
    def forward(self, query, key, value):
        return super().forward(2 * query, key, value)


def test_the_output_projection_of_an_attention_that_stays_float_stays_float():
    model = nn.ModuleDict({"mha": OwnAttention(4, 2), "fc": nn.Linear(4, 4)})
    bc.quantize_model(model)
    rows = bc.audit(model)
    assert [row.name for row in rows.converted_rows] == ["fc"]
    assert "inside nn.MultiheadAttention" in rows["mha.out_proj"].reason
    assert "OwnAttention overrides forward" in rows["mha"].reason


def test_bits_have_no_effect_on_a_layer_that_was_left_float():
    model = bc.quantize_model(nn.Sequential(OwnForward(4, 4), nn.Linear(4, 4)))
    x = randn(2, 4)
    expected = 2 * F.linear(x, model[0].weight, model[0].bias)
    bc.set_precision(model, "w2a2")
    assert torch.equal(model[0](x), expected)


def test_a_layer_with_an_attribute_that_conversion_needs_stays_float():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].precision = "the user's own"
    bc.quantize_model(model)
    assert model[0].precision == "the user's own"
    assert "'precision' of its own" in bc.audit(model)["0"].reason


# -- conversion of models inside DataParallel, DDP, FSDP2 and torch.compile, before or after ------


@pytest.fixture
def one_process():
    """A process group of this process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def compiled(model):
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "DDP": DistributedDataParallel,
    "compile": compiled,
    "compiled DDP": lambda model: compiled(DistributedDataParallel(model)),
    "DDP of compiled": lambda model: DistributedDataParallel(compiled(model)),
}


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("wrapper", "order"),
    [
        *((wrapper, "converted before") for wrapper in WRAPPERS),
        ("DataParallel", "converted after"), ("DDP", "converted after"),
        ("compile", "run, then converted"), ("compiled DDP", "run, then converted"),
    ],
)  # fmt: skip
def test_a_wrapped_model_computes_and_learns_quantized(wrapper, order):
    plain, x = linears(4, 4), randn(8, 4)
    if order == "converted before":
        model = WRAPPERS[wrapper](bc.quantize_model(plain))
    else:
        model = WRAPPERS[wrapper](plain)
        if order == "run, then converted":
            assert torch.allclose(model(x), plain(x))
        assert bc.quantize_model(model) is model
    bc.set_precision(model, "w3a3e8")
    assert torch.allclose(model(x), naive_linear(x, plain[0], 3), atol=1e-6)
    model(x).square().sum().backward()
    assert plain[0].weight.grad.isfinite().all()
    assert [row.name for row in bc.audit(model, x).rows] == ["0"]
    assert str(bc.get_precision(model)) == "w3a3e8"


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("wrapper", ["DDP", "DDP of compiled"])
def test_ddp_broadcasts_ranges_but_neither_bits_nor_health(wrapper):
    model = bc.quantize_model(net())
    wrapped = WRAPPERS[wrapper](model)
    broadcast = {id(buffer) for buffer in wrapped.modules_buffers}
    assert id(model.conv.act_range) in broadcast
    assert id(model.norm.running_mean) in broadcast
    assert id(model.conv.control) not in broadcast
    assert id(model.conv.health) not in broadcast


@pytest.mark.usefixtures("one_process")
def test_a_scheduler_and_a_float_state_see_through_wrappers():
    model = compiled(DistributedDataParallel(bc.quantize_model(linears(4, 4, 4))))
    bits = bc.PrecisionScheduler(model, forward={"*": 8, "1": 4}, total_steps=2)
    assert {name: str(p) for name, p in bits.precision.items()} == {"0": "w8a8e8", "1": "w4a4e8"}
    linears(4, 4, 4).load_state_dict(bc.float_state_dict(model), strict=True)


@pytest.mark.usefixtures("one_process")
def test_a_wrapped_model_is_converted_back():
    plain = linears(4, 4)
    model = DistributedDataParallel(bc.quantize_model(plain))
    bc.unquantize_model(model)
    assert type(plain[0]) is nn.Linear
    assert "_ddp_params_and_buffers_to_ignore" not in plain.__dict__


@pytest.mark.usefixtures("one_process")
def test_a_sharded_model_is_refused_and_the_audit_says_why():
    model = linears(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ValueError, match="0.weight"):
        bc.quantize_model(model)
    assert "sharded (fully_shard): convert first" in bc.audit(model)["0"].reason


@pytest.mark.usefixtures("one_process")
def test_a_converted_model_can_be_sharded():
    model, x = bc.quantize_model(linears(4, 4)), randn(8, 4)
    bc.set_precision(model, "w3a3e8")
    expected = naive_linear(x, model[0], 3)
    for module in (*model, model):
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    bc.set_precision(model, "w3a3e8")
    output = model(x)
    assert torch.allclose(output, expected, atol=1e-6)
    output.sum().backward()
    assert model[0].weight.grad.to_local().isfinite().all()
    assert bc.audit(model)["0"].is_converted


# -- encoder layers of torch have an evaluation path that reads weights and skips the Linears -----


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
    """Multiplied as the oracle does it: the values of attention lie on ties of the next grid."""
    bc.set_precision(bc.quantize_model(model, kernel="simulate"), f"FW{BITS}/BW8")
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


# -- state between float and converted models, files, devices and dtypes --------------------------


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


# -- the log ---------------------------------------------------------------------------------------


def test_the_log_says_how_many_modules_were_converted_and_nothing_is_printed(caplog, capfd):
    with caplog.at_level(logging.INFO, logger="bitcycle"):
        bc.quantize_model(net())
        bc.quantize_model(net(), skip=["head"])
        model = bc.quantize_model(net(), only=["conv"])
        bc.quantize_model(model, only=["head.0"])  # converted earlier counts
    counts = ["3 of 3", "1 of 3", "1 of 3", "2 of 3"]
    for record, count in zip(caplog.records, counts, strict=True):
        assert (record.name, record.levelname) == ("bitcycle", "INFO")
        assert record.getMessage().startswith(f"{count} modules")
    assert capfd.readouterr() == ("", "")


def test_a_program_that_sets_up_no_logging_stays_silent(capfd):
    code = "import bitcycle as bc; from torch import nn; bc.quantize_model(nn.Linear(2, 2))"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert capfd.readouterr() == ("", "")
