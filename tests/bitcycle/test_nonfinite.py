"""NaN and infinity are reported at the next step, with the layer's name."""

import pytest
import torch

import bitcycle as bc
from tests.bitcycle.toys import linears, net, randn


def run(nonfinite="raise"):
    model = bc.quantize_model(net())
    bits = bc.PrecisionScheduler(model, forward=4, backward=8, total_steps=10, nonfinite=nonfinite)
    return model, bits


def step(model, bits, x=None, factor=1.0):
    (model(randn(4, 2, 6, 6) if x is None else x) * factor).sum().backward()
    bits.step()


def test_a_bad_input_names_the_first_layer_it_reached():
    for value in (float("nan"), float("inf"), -float("inf")):
        model, bits = run()
        x = randn(4, 2, 6, 6)
        x[1, 0, 2, 3] = value
        with pytest.raises(bc.NonFiniteError, match=r"step 0 .*conv \(act\).*w4a4e8"):
            step(model, bits, x)


def test_a_bad_weight_is_named_as_such():
    model, bits = run()
    with torch.no_grad():
        model.head[2].weight[0, 0] = float("inf")
    with pytest.raises(bc.NonFiniteError, match=r"head.2 \(weight\)"):
        step(model, bits)


def test_a_bad_error_in_backward_names_the_last_layer_first():
    model, bits = run()
    with pytest.raises(bc.NonFiniteError, match=r"head.2 \(error\), layer head.0"):
        step(model, bits, factor=float("nan"))


def test_training_can_go_on_after_the_error():
    model, bits = run()
    with pytest.raises(bc.NonFiniteError):
        step(model, bits, factor=float("inf"))
    assert bits.step_count == 0
    bits.step()
    step(model, bits)
    assert bits.step_count == 2


def test_it_can_be_a_warning():
    model, bits = run("warn")
    with pytest.warns(bc.BitcycleWarning, match="step 0") as caught:
        step(model, bits, factor=float("nan"))
    assert caught[0].filename == __file__
    assert bits.step_count == 1
    step(model, bits)  # once is enough


def test_it_can_be_ignored():
    model, bits = run("ignore")
    step(model, bits, factor=float("nan"))
    assert bits.step_count == 1


def test_an_unknown_action_is_an_error():
    with pytest.raises(ValueError, match="did you mean 'warn'"):
        run("wran")


def test_roles_in_float32_are_not_watched():
    model = bc.quantize_model(linears(4, 4))
    bits = bc.PrecisionScheduler(model, weight=4, backward=None, total_steps=4)
    model(torch.full((2, 4), float("nan"))).sum().backward()
    bits.step()
