"""calibrate: activation ranges from data, and nothing else touched."""

import copy

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests.bitcycle.toys import Attention, linears, net, randn

# at float32, with separate functions, and inside a whole product of the library
every_way = pytest.mark.parametrize(
    ("kernel", "precision"), [("auto", "fp32"), ("simulate", "w8a8e8"), ("native", "w8a8e8")]
)


def converted(model, kernel="auto", precision="fp32"):
    bc.quantize_model(model, kernel=kernel)
    bc.set_precision(model, precision)
    return model


def ranges(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers() if "act_range" in name}


@every_way
def test_the_range_is_the_mean_over_batches(kernel, precision):
    model = converted(nn.Linear(2, 1), kernel, precision)
    batches = [torch.tensor([[0.0, 1.0]]), torch.tensor([[-1.0, 2.0]]), torch.tensor([[-2.0, 6.0]])]
    assert bc.calibrate(model, batches) is model
    assert torch.allclose(model.act_range, torch.tensor([[3.0, -1.0, 4.0]]))


@every_way
def test_both_operands_of_a_product_are_observed(kernel, precision):
    model = converted(bc.MatMul(), kernel, precision)
    batch = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([[-1.0], [4.0]])}
    bc.calibrate(model, [batch])
    assert model.act_range.tolist() == [[1.0, 1.0, 1.0], [1.0, -1.0, 5.0]]


@every_way
def test_without_reset_the_running_average_goes_on(kernel, precision):
    model = converted(nn.Linear(2, 1), kernel, precision)
    bc.calibrate(model, [torch.tensor([[0.0, 1.0]])])
    bc.calibrate(model, [torch.tensor([[-1.0, 2.0]])], reset=False)
    assert torch.allclose(model.act_range, torch.tensor([[2.0, -0.1, 1.2]]))  # 0.9 old + 0.1 new


def test_with_reset_a_layer_that_no_batch_reaches_is_unobserved_again():
    model = bc.quantize_model(nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 1)}))
    model.forward = model["a"].forward
    bc.set_precision(model, "a4")
    model["b"](randn(3, 2))
    bc.calibrate(model, [randn(3, 2)])
    assert [bc.audit(model)[name].is_observed for name in "ab"] == [True, False]
    assert model["b"].act_range.tolist() == [[0.0, 0.0, 0.0]]


def test_a_calibrated_float_checkpoint_is_evaluated_on_those_ranges_without_a_warning():
    model, x = bc.quantize_model(linears(4, 4)), randn(8, 4)
    bc.calibrate(model, [x])
    bc.set_precision(model.eval(), "a3")
    beyond = 100 * x
    low, high = x.min(), x.max()
    step = (high - low) / 7
    clipped = torch.round(((beyond - low) / step).clamp(0, 7)) * step + low
    assert torch.allclose(model(beyond), nn.functional.linear(clipped, *model[0].parameters()))


def test_ranges_are_those_of_the_present_bits():
    for kernel, precision in (("auto", "fp32"), ("auto", "w3a3e8"), ("native", "w3a3e8")):
        model, x = converted(linears(4, 4, 4), kernel, precision), randn(8, 4)
        bc.calibrate(model, [x])
        with torch.no_grad():
            hidden = model.eval()[0](x)
        expected = torch.stack([hidden.min(), hidden.max() - hidden.min()])
        assert torch.equal(model[1].act_range[0, 1:], expected)


def test_batches_are_tensors_tuples_lists_or_dicts():
    for batch in (
        randn(4, 2, 6, 6),
        (randn(4, 2, 6, 6), torch.zeros(4)),
        [randn(4, 2, 6, 6), torch.zeros(4), "more"],
        {"x": randn(4, 2, 6, 6)},
    ):
        model = bc.quantize_model(net())
        bc.calibrate(model, (batch for _ in range(2)))
        assert all(row.is_observed for row in bc.audit(model).rows)


def test_several_arguments_go_in_as_a_tuple_inside_the_batch():
    model = bc.quantize_model(bc.MatMul())
    bc.calibrate(model, [((randn(2, 3), randn(3, 2)), "target")])
    assert bc.audit(model)[""].is_observed


@pytest.mark.parametrize("kernel", ["auto", "native"])
def test_modes_statistics_bits_and_random_numbers_are_untouched(kernel):
    model = converted(net(), kernel, "w4a4e8")
    model.head.eval()
    modes = [module.training for module in model.modules()]
    before = copy.deepcopy(bc.float_state_dict(model))
    control = model.conv.control.clone()
    random_state = torch.get_rng_state()
    bc.calibrate(model, [randn(4, 2, 6, 6)])
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[k], v) for k, v in bc.float_state_dict(model).items())
    assert torch.equal(model.conv.control, control)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(p.grad is None for p in model.parameters())


@every_way
def test_an_exception_restores_modes_and_ranges(kernel, precision):
    for reset in (True, False):
        model = converted(net(), kernel, precision)
        bc.calibrate(model, [randn(4, 2, 6, 6)])
        before = ranges(model)
        with pytest.raises(RuntimeError):
            bc.calibrate(model, [randn(4, 2, 6, 6, seed=2), randn(4, 7, 6, 6)], reset=reset)
        assert model.training
        assert all(torch.equal(before[name], value) for name, value in ranges(model).items())
        bc.set_precision(model, "fp32")
        model(randn(4, 2, 6, 6))  # at full precision nothing is observed any more
        assert all(torch.equal(before[name], value) for name, value in ranges(model).items())
        assert bc.audit(model)["conv"].is_observed


def test_no_batch_is_an_error_and_keeps_the_ranges():
    model = bc.quantize_model(net())
    bc.calibrate(model, [randn(4, 2, 6, 6)])
    before = ranges(model)
    with pytest.raises(ValueError, match="no batch"):
        bc.calibrate(model, [])
    assert all(torch.equal(before[name], value) for name, value in ranges(model).items())


def test_parts_that_were_converted_separately_are_all_observed():
    model = nn.Sequential(Attention(), linears(4, 4))
    for part in model:
        bc.quantize_model(part)
    bc.calibrate(model, [randn(2, 3, 4)])
    assert all(row.is_observed for row in bc.audit(model).rows)


@every_way
def test_a_layer_called_twice_in_a_batch_keeps_the_mean_over_its_calls(kernel, precision):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, x):
            return self.linear(x) + self.linear(10 * x)

    model = converted(Twice(), kernel, precision)
    bc.calibrate(model, [torch.tensor([[0.0, 1.0]])] * 3)
    assert torch.allclose(model.linear.act_range, torch.tensor([[6.0, 0.0, 5.5]]))


@every_way
def test_data_that_is_not_finite_is_an_error_and_leaves_the_ranges(kernel, precision):
    model = converted(nn.Sequential(nn.Linear(2, 1)), kernel, precision)
    bc.calibrate(model, [torch.tensor([[0.0, 1.0]])])
    before = model[0].act_range.clone()
    with pytest.raises(bc.NonFiniteError, match=r"layer 0 \(act\)"):
        bc.calibrate(model, [torch.tensor([[0.0, float("nan")]])])
    assert torch.equal(model[0].act_range, before)
    assert model[0].is_observed
