"""What is left float, and the words the audit has for it."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune

import bitcycle as bc
from tests.toys import linears, randn


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
        with pytest.raises(
            ValueError, match="nothing to convert.*every layer is excluded"
        ) as caught:
            bc.quantize_model(nn.Sequential(make()))
        assert reason in str(caught.value)


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


def test_a_layer_that_was_skipped_has_that_as_its_reason():
    model = bc.quantize_model(linears(4, 4, 4), skip=["1"])
    assert "not chosen" in bc.audit(model)["1"].reason


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
