"""`first_last`: quantizers whose authors keep the first and the last layer float32."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.quantizers import QUANTIZERS, SBM, DoReFa
from bitcycle.quantizers.base import make_quantizer
from tests.toys import Attention, linears, net, randn

PUBLISHED = {
    "sbm": "quantized", "sbm_full": "quantized", "dorefa": "float32", "wageubn": "float32",
    "absmax": "quantized", "pow2": "quantized",
}  # fmt: skip


def kinds(model):
    return [type(module).__name__ for module in model]


def test_every_quantizer_has_its_published_default():
    assert {name: make_quantizer(name).first_last for name in QUANTIZERS} == PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_both_policies_are_a_choice_for_every_quantizer(name):
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


@pytest.mark.parametrize("widths", [(4, 4), (4, 4, 4)])
def test_a_model_of_ends_only_is_an_error_with_the_way_out(widths):
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


def test_a_model_with_float_ends_trains_on_a_schedule():
    model = bc.quantize_model(net(), "dorefa")
    scheduler = bc.PrecisionScheduler(model, forward="CR:2-8:1", backward=8, total_steps=8)
    for _ in range(8):
        model(randn(4, 2, 6, 6)).sum().backward()
        scheduler.step()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kernel", ["auto", "int8", "simulate"])
def test_the_audit_says_that_a_quantizer_has_no_codes(kernel):
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
