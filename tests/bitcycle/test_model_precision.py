"""Setting bits, reading them, and setting them for a while."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.model_precision import kernel_state, restore_kernels
from tests.bitcycle.toys import linears, naive_linear, net, randn


def bits_of(model):
    return [str(layer.precision) for layer in (model.conv, model.head[0], model.head[2])]


def test_bits_reach_the_arithmetic_of_every_layer():
    model, x = bc.quantize_model(linears(4, 4, 4)), randn(8, 4)
    for bits in (2, 3, 8):
        bc.set_precision(model, f"w{bits}a{bits}")
        hidden = naive_linear(x, model[0], bits)
        assert torch.allclose(model(x), naive_linear(hidden, model[1], bits), atol=1e-5)


def test_a_dict_sets_each_pattern_and_later_ones_win():
    model = bc.quantize_model(net())
    bc.set_precision(model, {"*": "w8", "head": "w4", "head.2": bc.Precision(act=3)})
    assert bits_of(model) == ["w8", "w4", "a3"]
    bc.set_precision(model, {nn.Conv2d: "w2"})
    assert bits_of(model) == ["w2", "w4", "a3"]


def test_a_number_is_the_bits_of_every_role():
    model = bc.quantize_model(net())
    bc.set_precision(model, 4)
    assert model.conv.precision == bc.Precision(weight=4, act=4, error=4, grad=4)
    assert str(bc.get_precision(model)) == "w4a4e4"
    assert model.conv.quantized_roles == ("weight", "act", "error")  # sbm has no rule for grad
    bc.set_precision(model, {"*": 8, "head": "w4"})
    assert [model.conv.precision.error, str(model.head[0].precision)] == [8, "w4"]
    with bc.at_precision(model, 3):
        assert str(bc.get_precision(model)) == "w3a3e3"
    assert str(model.head[0].precision) == "w4"


def test_layers_that_no_pattern_matches_keep_their_bits():
    model = bc.quantize_model(net())
    bc.set_precision(model, "w8")
    bc.set_precision(model, {"head.2": "w4"})
    assert bits_of(model) == ["w8", "w8", "w4"]


def test_a_mistake_is_an_error_and_nothing_is_written():
    for assignment, named in (
        ({"conv": "w4", "fc": "w8"}, "'fc'"),
        ({"head.2": "w4", "head": "w8"}, "'head.2'"),
        ({"conv": "w4", "head": "w99"}, "weight bits .*99"),
        ({"norm": "w4"}, "'norm'"),
        ("four", "'four'"),
        (0, "0"),
        (33, "33"),
        (True, "True"),
        ({"*": 8, "conv": -4}, "-4"),
        (4.0, "4.0"),
    ):
        model = bc.quantize_model(net())
        with pytest.raises(ValueError, match=named):
            bc.set_precision(model, assignment)
        assert bits_of(model) == ["fp32"] * 3


def test_a_float_model_is_told_to_convert_first():
    for call in (bc.get_precision, lambda m: bc.set_precision(m, "w4")):
        with pytest.raises(ValueError, match="quantize_model"):
            call(net())


def test_equal_layers_have_one_precision_and_different_ones_a_dict_that_goes_back():
    model = bc.quantize_model(net())
    bc.set_precision(model, "FW4/BW8")
    assert bc.get_precision(model) == bc.Precision.parse("w4a4e8")  # sbm has no rule for grad
    bc.set_precision(model, {"head.0": "w2", "head.2": "w3"})
    by_layer = bc.get_precision(model)
    assert {name: str(bits) for name, bits in by_layer.items()} == {
        "conv": "w4a4e8",
        "head.0": "w2",
        "head.2": "w3",
    }
    bc.set_precision(model, "fp32")
    bc.set_precision(model, by_layer)
    assert bc.get_precision(model) == by_layer


def test_bits_come_back_after_a_with():
    model = bc.quantize_model(net())
    bc.set_precision(model, {"*": "w8", "conv": "w4"})
    with bc.at_precision(model, "w2") as same:
        assert same is model
        assert bits_of(model) == ["w2"] * 3
        with bc.at_precision(model, {"head": "w3"}):
            assert bits_of(model) == ["w2", "w3", "w3"]
        assert bits_of(model) == ["w2"] * 3
    assert bits_of(model) == ["w4", "w8", "w8"]


def test_bits_come_back_after_an_exception():
    model = bc.quantize_model(net())
    bc.set_precision(model, "w8")
    with pytest.raises(KeyError), bc.at_precision(model, "w2"):
        raise KeyError
    with pytest.raises(ValueError, match="'w'"), bc.at_precision(model, "w"):
        pass
    assert bits_of(model) == ["w8"] * 3


def test_bits_set_inside_a_with_do_not_survive_it():
    model = bc.quantize_model(net())
    with bc.at_precision(model, "w2"):
        bc.set_precision(model, "w5")
    assert bits_of(model) == ["fp32"] * 3


def test_a_recorded_kernel_holds_after_an_evaluation_that_decided_the_same():
    model = bc.quantize_model(nn.Linear(512, 512))
    bc.set_precision(model, "w8a8e8")
    large, small = torch.randn(64, 512), torch.randn(1, 512)
    bc.calibrate(model.eval(), [large])
    model(large)
    decided = model.kernel.name
    restore_kernels(model, {**kernel_state(model), "kernels": {"": decided}})
    model.train()(small)  # too small to gain
    assert model.kernel.name == decided
    assert model.kernel_reason == "as the run began"
