"""Ranges, noise and state of converted recurrent layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.kernels import make_kernel
from bitcycle.kernels.measure import Recurrence
from bitcycle.nn.base import advance_clocks
from bitcycle.nn.recurrent import RecurrentLayer

from .layers import convert

STOCHASTIC = {"error_rounding": "stochastic"}


def _lstm(precision: str | None = "w4a4e4", **options: Any) -> Any:
    torch.manual_seed(0)
    rules = {k: options.pop(k) for k in ("error_rounding", "grad_input_weight") if k in options}
    return convert(nn.LSTM(4, 6, **options), precision, **rules)


def _grads(layer: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in layer.parameters() if p.grad is not None]


def test_there_is_a_range_for_x_and_one_for_h_per_layer_and_direction() -> None:
    assert _lstm(num_layers=3, bidirectional=True).act_range.shape == (12, 3)
    assert _lstm(num_layers=2, proj_size=2).act_range.shape == (6, 3)
    assert convert(nn.GRUCell(4, 6)).act_range.shape == (2, 3)


def test_the_running_range_of_h_spans_all_time_steps_and_moves_once_per_call() -> None:
    layer, x = _lstm(None), torch.randn(7, 3, 4)
    bc.set_precision(layer, "w16a16")
    output, _ = layer(x)
    states = torch.cat([torch.zeros(1, 3, 6), output[:-1]])  # h before each step
    expected = torch.stack([torch.tensor(1.0), states.min(), states.max() - states.min()])
    torch.testing.assert_close(layer.act_range[1], expected.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(layer.act_range[0, 1:], torch.stack([x.min(), x.max() - x.min()]))
    layer(x)
    assert layer.act_range[:, 0].tolist() == [2.0, 2.0]


def test_evaluation_observes_nothing() -> None:
    layer, x = _lstm(), torch.randn(7, 3, 4)
    layer(x)
    before = layer.act_range.clone()
    layer.eval()(3 * x)
    assert torch.equal(layer.act_range, before)


def test_a_layer_that_never_trained_warns_in_evaluation_and_takes_each_steps_range() -> None:
    layer, x = _lstm(), torch.randn(7, 3, 4)
    twin = copy.deepcopy(layer)
    with pytest.warns(bc.BitcycleWarning, match="never observed"):
        output, _ = layer.eval()(x)
    assert torch.equal(output, twin(x)[0])


def test_calibration_observes_h_even_at_full_precision() -> None:
    layer, x = _lstm(None), torch.randn(7, 3, 4)
    bc.calibrate(layer, [x, 2 * x])
    assert layer.act_range[:, 0].tolist() == [2.0, 2.0]
    assert (layer.act_range[1, 2] > 0).all()


def _same_error_at_every_step(seed: int, kind: Any = nn.RNN) -> Tensor:
    """The hidden state's weight gradient by time step, for one error and one state in all."""
    torch.manual_seed(0)
    float_layer = kind(4, 6, nonlinearity="relu", bias=False)
    nn.init.zeros_(float_layer.weight_hh_l0)  # no error comes from later steps
    layer = convert(float_layer, "e3", seed=seed, **STOCHASTIC)
    x = torch.rand(1, 2, 4).expand(5, 2, 4)
    nn.init.constant_(layer.weight_ih_l0, 0.1)
    rows = []
    for t in range(1, 5):
        layer.zero_grad()
        advance_clocks([layer], 0)
        output, _ = layer(x)
        mask = torch.zeros(5, 1, 1)
        mask[t] = 1
        error = torch.randn(2, 6, generator=torch.Generator().manual_seed(1)) * mask
        output.backward(error)
        rows.append(layer.weight_hh_l0.grad.clone())
    return torch.stack(rows)


def test_the_noise_of_every_time_step_and_of_every_seed_differs() -> None:
    grads = _same_error_at_every_step(seed=0)
    assert grads.abs().sum() > 0
    for t in range(4):
        for earlier in range(t):
            assert not torch.equal(grads[t], grads[earlier])
    assert not torch.equal(grads, _same_error_at_every_step(seed=1))
    assert torch.equal(grads, _same_error_at_every_step(seed=0))


def test_the_products_of_a_layer_do_not_share_noise() -> None:
    """With x and h equal, their weight gradients would be equal if the errors were."""
    torch.manual_seed(0)
    float_layer = nn.RNN(6, 6, nonlinearity="relu", bias=False)
    x, error = torch.rand(1, 4, 6), torch.randn(1, 4, 6)
    for precision, are_equal in (("w32a32e32", True), ("e2", False)):
        layer = convert(copy.deepcopy(float_layer), precision, **STOCHASTIC)
        layer(x, x)[0].backward(error)
        grads = layer.weight_ih_l0.grad, layer.weight_hh_l0.grad
        assert torch.allclose(*grads) == are_equal


def test_stochastic_errors_have_the_nearest_ones_mean() -> None:
    """Averaged over clocks, the gradients are those of the unrounded error."""
    layer = _lstm("e4", **STOCHASTIC)
    x, exact = torch.randn(4, 3, 4), _lstm("w32a32")
    sums = [torch.zeros_like(p) for p in layer.parameters()]
    for step in range(200):
        layer.zero_grad()
        advance_clocks([layer], step)
        layer(x)[0].sum().backward()
        for total, grad in zip(sums, _grads(layer), strict=True):
            total += grad / 200
    exact(x)[0].sum().backward()
    for mean, expected in zip(sums, _grads(exact), strict=True):
        torch.testing.assert_close(mean, expected, rtol=0, atol=0.04 * float(expected.abs().max()))


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_nothing(reentrant: bool) -> None:
    plain = _lstm(num_layers=2, bidirectional=True, proj_size=3, **STOCHASTIC)
    other = copy.deepcopy(plain)
    x = torch.randn(5, 3, 4, requires_grad=True)
    for factor in (1.0, 3.0):
        plain(factor * x)[0].square().sum().backward()
        output = checkpoint(other, factor * x, use_reentrant=reentrant)[0]
        output.square().sum().backward()
        for one, two in zip(_grads(plain), _grads(other), strict=True):
            assert torch.equal(one, two)
        for one, two in zip(plain.buffers(), other.buffers(), strict=True):
            assert torch.equal(one, two)


def test_a_resumed_step_has_the_same_noise() -> None:
    layer, x = _lstm(**STOCHASTIC), torch.randn(5, 3, 4)
    results = []
    for step in (7, 8, 7):
        layer.zero_grad()
        advance_clocks([layer], step)
        layer(x)[0].sum().backward()
        results.append(layer.weight_hh_l0.grad.clone())
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[1])


def test_the_weights_are_put_on_their_grid_once_per_call() -> None:
    layer = _lstm(num_layers=2)
    with bc.collect(layer) as statistics:
        layer(torch.randn(9, 3, 4))[0].sum().backward()
    assert statistics["", "weight"].num_calls == 4
    assert statistics["", "act"].num_calls == 2 * (1 + 9)
    assert statistics["", "error"].num_calls == 2 * (1 + 9)


def test_a_nan_in_a_hidden_state_is_seen() -> None:
    layer = _lstm()
    state = torch.zeros(1, 3, 6)
    state[0, 1, 2] = float("nan")
    layer(torch.randn(5, 3, 4), (state, torch.zeros(1, 3, 6)))
    assert layer.health[1].isnan()
    assert layer.act_range.isfinite().all()


@pytest.mark.parametrize("kernel", ["dequantize", "int8", "bf16"])
@pytest.mark.parametrize("grid", ["shared", "per_input_channel"])
def test_kernels_of_codes_give_what_simulate_gives(kernel: str, grid: str) -> None:
    rules = bc.quantizers.SBM(error_rounding="nearest", grad_input_weight=grid)
    results = []
    for name in ("simulate", kernel):
        torch.manual_seed(0)
        layer = bc.quantize_model(nn.LSTM(8, 16, 2, proj_size=5), rules, kernel=name, max_bits=7)
        bc.set_precision(layer, "w7a7e7")
        x = torch.randn(5, 3, 8, requires_grad=True)
        output, states = layer(x)
        (output.sum() + states[1].sum()).backward()
        results.append([output, x.grad, *_grads(layer)])
    for one, other in zip(*results, strict=True):
        # a code that falls on the other side of a tie, in a step or two: 1/127 of a range
        torch.testing.assert_close(one, other, rtol=0, atol=0.02 * float(one.detach().abs().max()))


def test_codes_of_at_most_4_bits_are_kept_two_per_byte_and_change_nothing() -> None:
    results = []
    for max_bits in (4, 8):
        torch.manual_seed(0)
        layer = bc.quantize_model(nn.LSTM(8, 15), kernel="dequantize", max_bits=max_bits)
        bc.set_precision(layer, "w4a4e4")
        layer(torch.randn(5, 3, 8))[0].sum().backward()
        results.append(_grads(layer))
    assert all(map(torch.equal, *results))


def test_auto_decides_one_kernel_for_all_products_in_the_first_training_step() -> None:
    layer = bc.quantize_model(nn.LSTM(4, 6))
    bc.set_precision(layer, "w4a4e4")
    layer(torch.randn(5, 3, 4))
    assert layer.settings.kernel.name == "simulate"
    assert layer.settings.kernel_reason == "auto: too small to gain"


def test_auto_weighs_the_products_of_every_time_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def decide(*args: object, recurrence: object, **kwargs: object) -> object:
        seen.append(recurrence)
        return make_kernel("simulate"), "auto: measured"

    monkeypatch.setattr("bitcycle.nn.base.decide_kernel", decide)
    layer = bc.quantize_model(nn.LSTM(4, 6, proj_size=5))
    bc.set_precision(layer, "w4a4e4")
    layer(torch.randn(7, 3, 4))
    assert seen == [Recurrence(rows=3, num_steps=7, w_shape=(24, 5))]


def test_compiled_models_break_at_the_layer_and_compute_the_same() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.ModuleDict({"lstm": nn.LSTM(4, 6), "fc": nn.Linear(6, 2)})
    model.forward = lambda x: model["fc"](model["lstm"](x)[0].relu())  # type: ignore[method-assign]
    bc.quantize_model(model, bc.quantizers.SBM(error_rounding="nearest"))
    x = torch.randn(5, 3, 4)
    for precision in ("fp32", "w4a4e4"):
        bc.set_precision(model, precision)
        expected = model.forward(x)
        compiled = torch.compile(model.forward, backend="aot_eager")(x)
        torch.testing.assert_close(compiled, expected)
    torch._dynamo.reset()


def test_every_recurrent_layer_of_torch_is_converted() -> None:
    for kind in (nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell):
        assert isinstance(convert(kind(4, 6)), RecurrentLayer)
