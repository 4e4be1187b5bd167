"""Converting a model twice, in parts, and with a limit on its bits."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests.toys import linears, net, randn


def gradient(model, x):
    model.zero_grad()
    (model(x) * randn(*model(x).shape, seed=9)).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


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


def test_the_seed_decides_the_noise():
    x = randn(8, 16)
    models = [bc.quantize_model(linears(16, 16), seed=seed) for seed in (0, 0, 1)]
    for model in models:
        bc.set_precision(model, "e3")
    first, same, other = (gradient(model, x) for model in models)
    assert torch.equal(first[0], same[0])
    assert not torch.equal(first[0], other[0])


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


def test_exceeding_max_bits_raises_before_anything_is_written():
    model = bc.quantize_model(linears(4, 4, 4), only=["0"])
    bc.quantize_model(model, only=["1"], max_bits=4)
    with pytest.raises(ValueError, match=r"layer '1' was converted with max_bits=4 .* w8a8e8"):
        bc.set_precision(model, "w8a8e8")
    assert str(bc.get_precision(model)) == "fp32"
    bc.set_precision(model, "w4a4e4")


def test_float32_never_exceeds_max_bits():
    model = bc.quantize_model(linears(4, 4), max_bits=4)
    bc.set_precision(model, "w4a24e32")
    assert model[0].quantized_roles == ("weight",)


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
