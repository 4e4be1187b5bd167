"""Running activation ranges: when they are observed, and what evaluation does with them."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import bitcycle as bc
from bitcycle.warnings import BitcycleWarning

from .. import naive
from .layers import convert


def _batch(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, 8).view(2, 4)


def test_the_running_range_starts_at_the_first_batch() -> None:
    layer = convert(nn.Linear(4, 3), "a4")
    assert layer.act_range.tolist() == [[0.0, 0.0, 0.0]]
    layer(_batch(-1.0, 2.0))
    assert layer.act_range.tolist() == [[1.0, -1.0, 3.0]]  # observations, minimum, range
    assert layer.is_observed


def test_the_running_range_keeps_nine_tenths_and_takes_one_tenth() -> None:
    layer = convert(nn.Linear(4, 3), "a4")
    layer(_batch(-1.0, 2.0))
    layer(_batch(0.0, 10.0))
    # minimum .9 * -1 + .1 * 0, range .9 * 3 + .1 * 10
    torch.testing.assert_close(layer.act_range, torch.tensor([[2.0, -0.9, 3.7]]))
    layer(_batch(1.0, 1.0))
    torch.testing.assert_close(layer.act_range, torch.tensor([[3.0, -0.71, 3.33]]))


def test_training_rounds_on_the_batch_s_own_range_and_evaluation_on_the_running_one() -> None:
    layer = convert(nn.Linear(4, 4, bias=False), "a3")
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4))
    layer(_batch(0.0, 7.0))
    narrow = _batch(0.0, 0.7)
    assert torch.equal(layer.eval()(narrow), torch.round(narrow))  # step 1
    torch.testing.assert_close(layer.train()(narrow), narrow)  # step .1


def test_evaluation_and_missing_act_bits_observe_nothing() -> None:
    layer = convert(nn.Linear(4, 3), "a4")
    layer(_batch(-1.0, 2.0))
    before = layer.act_range.clone()
    layer.eval()(_batch(0.0, 10.0))
    layer.train()
    bc.set_precision(layer, "w4e4")
    layer(_batch(0.0, 10.0))
    assert torch.equal(layer.act_range, before)


def test_an_empty_batch_is_not_observed() -> None:
    layer = convert(nn.Linear(4, 3), "a4")
    layer(torch.empty(0, 4))
    assert not layer.is_observed
    assert not layer.act_range.any()


def test_unobserved_evaluation_uses_the_batch_s_own_range_with_one_warning_per_model() -> None:
    torch.manual_seed(0)
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)))
    bc.set_precision(model, "w4a4e4")
    model.eval()
    x = torch.randn(5, 4)
    with pytest.warns(BitcycleWarning, match="layer '0' has never observed") as log:
        output = model(x)
    assert len(log) == 1
    model(x)  # our warnings are errors here: no second one
    hidden = naive.linear(
        naive.per_tensor(x, 4), naive.per_channel(model[0].weight.detach(), 4),
        model[0].bias.detach(), torch.zeros(5, 4),
    ).output.float()  # fmt: skip
    expected = naive.linear(
        naive.per_tensor(hidden, 4), naive.per_channel(model[1].weight.detach(), 4),
        model[1].bias.detach(), torch.zeros(5, 3),
    ).output  # fmt: skip
    torch.testing.assert_close(output, expected.float(), rtol=1e-4, atol=1e-5)
    other = bc.quantize_model(nn.Linear(4, 3))
    bc.set_precision(other, "a4")
    with pytest.warns(BitcycleWarning, match="has never observed"):
        other.eval()(x)  # another model has a warning of its own


def test_an_observed_model_evaluates_without_a_warning() -> None:
    layer = convert(nn.Linear(4, 3), "a4")
    layer(_batch(-1.0, 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.eval()(_batch(0.0, 1.0))


def test_weight_bits_alone_need_no_range() -> None:
    layer = convert(nn.Linear(4, 3), "w4e4").eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(_batch(0.0, 1.0))


def test_ranges_can_be_forgotten() -> None:
    layer = convert(nn.Linear(4, 3), "a4")
    layer(_batch(-1.0, 2.0))
    layer.reset_ranges()
    assert not layer.is_observed
    layer(_batch(0.0, 5.0))
    assert layer.act_range.tolist() == [[1.0, 0.0, 5.0]]  # a first batch again


def test_a_half_precision_input_leaves_a_float32_range() -> None:
    layer = convert(nn.Linear(4, 3), "a4").half()
    x = torch.tensor([[-60000.0, 0.0, 1.0, 60000.0]], dtype=torch.float16)
    layer(x)
    assert layer.act_range.dtype == torch.float32
    assert layer.act_range.tolist() == [[1.0, -60000.0, 120000.0]]


def test_evaluation_of_a_half_precision_layer_reads_the_range_in_float32() -> None:
    layer = convert(nn.Linear(2, 1, bias=False), "a8").half()
    with torch.no_grad():
        layer.weight.fill_(1.0)
    layer.train()(torch.tensor([[0.0, 1.0]], dtype=torch.float16))
    for _ in range(3):
        layer(torch.tensor([[0.0, 0.7]], dtype=torch.float16))
    layer.eval()
    step = float(layer.act_range[0, 2]) / 255  # not a float16 number
    x = torch.tensor([[0.0, 0.5]], dtype=torch.float16)
    expected = torch.tensor(round(0.5 / step) * step, dtype=torch.float32).half()
    assert layer(x).item() == expected.item()


def test_a_later_observation_does_not_disturb_an_earlier_evaluation_s_backward() -> None:
    torch.manual_seed(0)
    layer = convert(nn.Linear(4, 3), "w4a4e4")
    layer(_batch(-1.0, 2.0))
    x = torch.randn(2, 4, requires_grad=True)
    output = layer.eval()(x)
    expected = torch.autograd.grad(output.sum(), x, retain_graph=True)[0]
    layer.train()(_batch(0.0, 100.0))
    output.sum().backward()
    assert torch.equal(x.grad, expected)


def test_a_shared_layer_observes_every_call() -> None:
    layer = convert(nn.Linear(4, 4), "a4")
    layer(_batch(0.0, 1.0))
    layer(_batch(0.0, 2.0))
    torch.testing.assert_close(layer.act_range, torch.tensor([[2.0, 0.0, 1.1]]))


def test_one_batch_that_is_not_finite_does_not_spoil_the_running_range() -> None:
    layer = bc.quantize_model(nn.Linear(2, 2))
    bc.set_precision(layer, "w8a8")
    layer(torch.tensor([[0.0, 1.0]]))
    layer(torch.tensor([[0.0, float("inf")]]))
    assert layer.act_range.tolist() == [[1.0, 0.0, 1.0]]


def test_ranges_written_by_an_average_count_as_observed() -> None:
    model = bc.quantize_model(nn.Sequential(nn.Linear(2, 2)))
    bc.set_precision(model, "w8a8")
    average = AveragedModel(model)  # a copy made before anything was observed
    model(torch.tensor([[0.0, 1.0]]))
    assert not average.module[0].is_observed
    average.update_parameters(model)  # copies the buffers
    assert average.module[0].is_observed


def test_loading_a_part_of_the_state_leaves_the_other_ranges_alone() -> None:
    model = bc.quantize_model(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    bc.set_precision(model, "w8a8")
    model(torch.randn(4, 2))
    part = {name: value for name, value in model.state_dict().items() if name.startswith("0.")}
    model.load_state_dict(part, strict=False)
    assert [layer.is_observed for layer in model] == [True, True]
