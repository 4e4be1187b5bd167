"""A converted layer: bits as data, its settings, the running ranges of its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils._python_dispatch import TorchDispatchMode

import bitcycle as bc
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn import QuantizedLayer
from bitcycle.nn.control import CLOCK, LEVELS, advance_clocks, number_slots
from bitcycle.nn.settings import ModelState, without_sync
from bitcycle.ops.noise import hash_ints
from bitcycle.warnings import BitcycleWarning

from .. import naive
from .layers import convert

Linear = Callable[..., QuantizedLayer]


class Writes(TorchDispatchMode):
    """Counts the operations that write to a tensor in place."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        if func._schema.is_mutable:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _three_layers(kernel: str = "auto") -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 1), bc.MatMul())
    return bc.quantize_model(model, kernel=kernel)


def test_set_precision_writes_one_tensor_per_changed_layer() -> None:
    model = _three_layers()
    with Writes() as writes:
        bc.set_precision(model, "w4a4e8")
    assert writes.names == ["copy_"] * 3
    with Writes() as writes:
        bc.set_precision(model, {"0": "w5a5e8"})
    assert writes.names == ["copy_"]


@pytest.mark.parametrize("kernel", ["auto", "native"])
def test_set_precision_writes_nothing_when_nothing_changed(kernel: str) -> None:
    model = _three_layers(kernel)
    bc.set_precision(model, "w4a4e8")
    model[0](torch.randn(2, 4)).sum().backward()  # a call advances the clock of the noise
    with Writes() as writes:
        bc.set_precision(model, "w4a4e8")
    assert writes.names == []


def test_set_precision_writes_again_what_something_else_overwrote() -> None:
    layer = convert(nn.Linear(4, 4), "w4a4e8")
    layer.control.zero_()  # as an average over buffers would
    assert layer.set_precision(layer.precision)
    assert layer.control[:4].tolist() == [15, 15, 255, 0]
    assert not layer.set_precision(layer.precision)


@pytest.mark.parametrize("kernel", ["simulate", "native"])
def test_the_control_tensor_holds_level_counts_and_the_clock(kernel: str) -> None:
    layer = convert(nn.Linear(4, 4), "w2a8e5", kernel=kernel)
    assert layer.control.dtype == torch.int32
    # levels 2^b - 1 of weight, act, error, grad; hash(seed, rank, layer); step; call
    assert layer.control[:4].tolist() == [3, 255, 31, 0]
    assert layer.control[CLOCK].tolist() == [hash_ints(0, 0, 0), 0, 0]  # crc32 of "" is 0
    layer(torch.randn(2, 4))
    assert layer.control[CLOCK].tolist() == [hash_ints(0, 0, 0), 0, 1]


def test_the_control_tensor_holds_the_numbers_of_formats() -> None:
    layer = convert(nn.Linear(4, 4), "w=bf16,e=fp16")
    assert layer.control[:4].tolist() == [0, 0, 0, 0]
    assert layer.control[number_slots(LEVELS["weight"])].tolist() == [7, -126, 0x7F7F0000]
    assert layer.control[number_slots(LEVELS["act"])].tolist() == [0, 0, 0]
    assert layer.control[number_slots(LEVELS["error"])].tolist() == [10, -14, 0x477FE000]


def test_bits_of_24_and_more_are_no_bits() -> None:
    layer = convert(nn.Linear(4, 4), "w24a23e32")
    assert layer.quantized_roles == ("act",)
    assert layer.control[:4].tolist() == [0, 2**23 - 1, 0, 0]


def test_a_role_without_a_rule_takes_no_effect() -> None:
    layer = convert(nn.Linear(4, 4), "FW4/BW8")
    assert layer.quantized_roles == ("weight", "act", "error")
    assert layer.precision.grad == 8


@pytest.mark.parametrize("kernel", ["simulate", "native"])
def test_evaluation_without_gradients_does_not_advance_the_noise(kernel: str) -> None:
    layer = convert(nn.Linear(4, 4), "w4a4e4", kernel=kernel)
    layer(torch.randn(2, 4))
    before = layer.control.clone()
    with torch.no_grad():
        layer.eval()(torch.randn(2, 4))
    assert torch.equal(layer.control, before)


@pytest.mark.parametrize("kernel", ["simulate", "native"])
def test_a_new_step_resets_the_call_and_moves_the_noise(kernel: str) -> None:
    layer = convert(nn.Linear(4, 4), "w4a4e4", kernel=kernel)
    layer(torch.randn(2, 4))
    advance_clocks([layer], 7)
    assert layer.control[CLOCK].tolist()[1:] == [7, 0]
    assert layer.shared.step == 7
    assert not layer.set_precision(layer.precision)  # the bits were not touched


def test_layers_and_seeds_have_noise_of_their_own() -> None:
    model, other = _three_layers(), bc.quantize_model(nn.Sequential(nn.Linear(4, 4)), seed=1)
    bases = [int(layer.control[CLOCK][0]) for layer in (*model, *other)]
    assert len(set(bases)) == 4


@pytest.mark.parametrize("kernel", ["simulate", "native"])
def test_the_bits_of_a_forward_hold_for_its_backward(kernel: str) -> None:
    def gradient(later: str | None) -> Tensor:
        layer = convert(nn.Linear(4, 3, bias=False), "w3a3e3", kernel=kernel)
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(-1, 1, 12).view(3, 4))
        output = layer(torch.linspace(-1, 1, 8).view(2, 4))
        if later is not None:
            bc.set_precision(layer, later)
        output.square().sum().backward()
        assert layer.weight.grad is not None
        return layer.weight.grad

    expected = gradient(None)
    for later in ("w8a8e8", "fp32"):
        assert torch.equal(gradient(later), expected)


def test_bits_beyond_the_given_limit_are_refused_before_anything_is_written() -> None:
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), max_bits=4)
    with pytest.raises(ValueError, match="'1' .*max_bits=4.*w8a8"):
        bc.set_precision(model, {"*": "w2", "1": "w8a8"})
    assert bc.get_precision(model) == bc.Precision()
    bc.set_precision(model, "w4a32")  # float32 is no bits


def test_a_kernel_that_was_asked_for_and_a_quantizer_have_limits_too() -> None:
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4)), kernel="native")
    with pytest.raises(ValueError, match="'0' .*w12a12.*'native'"):
        bc.set_precision(model, "w12a12")
    bc.set_precision(model, "w8a8")


def test_a_model_has_bits_while_any_layer_has() -> None:
    state = ModelState()
    state.note_bits("a", True)
    state.note_bits("b", True)
    state.note_bits("a", False)
    assert state.has_bits
    state.note_bits("b", False)
    state.note_bits("never there", False)
    assert not state.has_bits


def test_a_quantizer_without_sync_has_the_same_rules() -> None:
    synced = bc.quantizers.SBM(sync_ranges=True)
    assert without_sync(synced) == bc.quantizers.SBM()
    own = bc.quantizers.SBM()
    assert without_sync(own) is own
    x = torch.linspace(-1, 1, 5)
    assert without_sync(synced).range_of("act", x) == own.range_of("act", x)


@pytest.fixture(params=["separate", "whole"])
def linear(request: pytest.FixtureRequest) -> Linear:
    """Makes a linear layer with act bits; in a whole product the library keeps its ranges.

    Weights of one bit make it whole: exact where each row has two values.
    """

    def make(*sizes: int, bits: int = 4, error: str = "", **options: Any) -> QuantizedLayer:
        precision = f"a{bits}{error}"
        if request.param == "separate":
            return convert(nn.Linear(*sizes, **options), precision)
        layer = convert(nn.Linear(*sizes, **options), f"w1{precision}", kernel="native")
        plan = layer.plan(LinearGeometry(), torch.ones(1, sizes[0]), layer.weight)
        assert plan.whole is not None
        return layer

    return make


def _batch(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, 8).view(2, 4)


def test_the_running_range_starts_at_the_first_batch(linear: Linear) -> None:
    layer = linear(4, 3)
    assert layer.act_range.tolist() == [[0.0, 0.0, 0.0]]
    layer(_batch(-1.0, 2.0))
    assert layer.act_range.tolist() == [[1.0, -1.0, 3.0]]  # observations, minimum, range
    assert layer.is_observed


def test_the_running_range_keeps_nine_tenths_and_takes_one_tenth(linear: Linear) -> None:
    layer = linear(4, 3)
    layer(_batch(-1.0, 2.0))
    layer(_batch(0.0, 10.0))
    # minimum .9 * -1 + .1 * 0, range .9 * 3 + .1 * 10
    torch.testing.assert_close(layer.act_range, torch.tensor([[2.0, -0.9, 3.7]]))
    layer(_batch(1.0, 1.0))
    torch.testing.assert_close(layer.act_range, torch.tensor([[3.0, -0.71, 3.33]]))


def test_training_rounds_on_the_batch_s_own_range_and_evaluation_on_the_running_one(
    linear: Linear,
) -> None:
    layer = linear(4, 4, bits=3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4))
    layer(_batch(0.0, 7.0))
    narrow = _batch(0.0, 0.7)
    assert torch.equal(layer.eval()(narrow), torch.round(narrow))  # step 1
    torch.testing.assert_close(layer.train()(narrow), narrow)  # step .1


def test_evaluation_and_missing_act_bits_observe_nothing(linear: Linear) -> None:
    layer = linear(4, 3)
    layer(_batch(-1.0, 2.0))
    before = layer.act_range.clone()
    layer.eval()(_batch(0.0, 10.0))
    layer.train()
    bc.set_precision(layer, "w4e4")
    layer(_batch(0.0, 10.0))
    assert torch.equal(layer.act_range, before)


def test_an_empty_batch_is_not_observed(linear: Linear) -> None:
    layer = linear(4, 3)
    layer(torch.empty(0, 4))
    assert not layer.is_observed
    assert not layer.act_range.any()


@pytest.mark.parametrize("kernel", ["auto", "native"])
def test_unobserved_evaluation_uses_the_batch_s_own_range_with_one_warning_per_model(
    kernel: str,
) -> None:
    torch.manual_seed(0)
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), kernel=kernel)
    bc.set_precision(model, "w4a4e4")
    model.eval()
    x = torch.randn(5, 4)
    with pytest.warns(BitcycleWarning, match="'0'") as log:
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
    other = bc.quantize_model(nn.Linear(4, 3), kernel=kernel)
    bc.set_precision(other, "w4a4")
    with pytest.warns(BitcycleWarning, match="never observed"):
        other.eval()(x)  # another model has a warning of its own


def test_weight_bits_alone_need_no_range() -> None:
    layer = convert(nn.Linear(4, 3), "w4e4").eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(_batch(0.0, 1.0))


def test_ranges_can_be_forgotten(linear: Linear) -> None:
    layer = linear(4, 3)
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


def test_a_later_observation_does_not_disturb_an_earlier_evaluation_s_backward(
    linear: Linear,
) -> None:
    torch.manual_seed(0)
    layer = linear(4, 3, error="e4")
    layer(_batch(-1.0, 2.0))
    x = torch.randn(2, 4, requires_grad=True)
    output = layer.eval()(x)
    expected = torch.autograd.grad(output.sum(), x, retain_graph=True)[0]
    layer.train()(_batch(0.0, 100.0))
    output.sum().backward()
    assert torch.equal(x.grad, expected)


def test_one_batch_that_is_not_finite_does_not_spoil_the_running_range(linear: Linear) -> None:
    layer = linear(2, 2, bits=8)
    layer(torch.tensor([[0.0, 1.0]]))
    layer(torch.tensor([[0.0, float("inf")]]))
    assert layer.act_range.tolist() == [[1.0, 0.0, 1.0]]


def test_ranges_written_by_an_average_count_as_observed(linear: Linear) -> None:
    model = nn.Sequential(linear(2, 2, bits=8))
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
