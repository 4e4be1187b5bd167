"""The level bf16 with a kernel that multiplies bfloat16: values, results, memory, flags."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.bits import Bits
from bitcycle.formats.rounding import round_elements, to_bf16
from bitcycle.memory import saved_bytes
from bitcycle.native import formats as native
from bitcycle.native.library import library
from bitcycle.nn import QuantizedLayer

NUMBERS = torch.tensor(Bits.of("bf16").numbers, dtype=torch.int32)
SPECIAL = torch.tensor(
    [0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 1.00390625, 1.01171875, 3.3961e38, -3.4e38,
     float("inf"), -float("inf"), float("nan")]
)  # fmt: skip
HALF = torch.bfloat16

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(48, 40), (3, 7, 48)),
    "conv": (lambda: nn.Conv2d(6, 10, 3, stride=2, padding=1), (2, 6, 9, 9)),
    "conv1d": (lambda: nn.Conv1d(6, 10, 3), (2, 6, 17)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 10, 3, stride=2), (2, 6, 5, 5)),
}
every_layer = pytest.mark.parametrize("kind", LAYERS)


def make(kind: str, kernel: str = "bf16", precision: str = "bf16") -> tuple[QuantizedLayer, Tensor]:
    torch.manual_seed(0)
    build, shape = LAYERS[kind]
    layer = bc.quantize_model(build(), kernel=kernel)
    bc.set_precision(layer, precision)
    return layer, torch.randn(shape, requires_grad=True)


def step(layer: nn.Module, x: Tensor, run: Any = None) -> list[Tensor]:
    """The output and the gradients of the input and the parameters."""
    layer.zero_grad()
    x.grad = None
    y = (run or layer)(x)
    generator = torch.Generator().manual_seed(1)
    y.backward(torch.randn(y.shape, generator=generator).to(y.dtype))
    assert x.grad is not None
    found = [y.detach(), x.grad.clone()]
    return found + [p.grad.clone() for p in layer.parameters() if p.grad is not None]


# -- rounding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_native", [True, False])
def test_bfloat16_is_exactly_what_the_format_rounds_to(monkeypatch, is_native) -> None:
    if is_native and library() is None:
        pytest.skip("no native library")
    if not is_native:
        monkeypatch.setattr(native, "is_available", lambda *_: False)
    torch.manual_seed(0)
    scales = 10.0 ** torch.linspace(-44, 38, 50_000)
    x = torch.cat([torch.randn(50_000) * scales, SPECIAL, -SPECIAL])
    found, expected = to_bf16(x), round_elements(x, NUMBERS)
    assert found.dtype is HALF
    is_nan = expected.isnan()
    assert torch.equal(found.isnan(), is_nan)
    # bits: signs of zeros count
    assert torch.equal(
        found.float().view(torch.int32)[~is_nan], expected.view(torch.int32)[~is_nan]
    )


def test_every_bfloat16_number_stays_itself() -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(HALF)
    found = to_bf16(every.float())
    assert torch.equal(found.isnan(), every.isnan())
    assert torch.equal(found[~every.isnan()], every[~every.isnan()])
    assert to_bf16(every).data_ptr() == every.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_the_flag_turns_nan_for_what_is_not_finite(dtype) -> None:
    for bad, is_finite in ((1.0, True), (3e38, True), (float("inf"), False), (float("nan"), False)):
        x, flag = torch.ones(40_000, dtype=dtype), torch.zeros(())
        x[30_000] = bad
        to_bf16(x, flag)
        assert bool(flag.isnan()) is not is_finite


def test_tensors_of_any_layout_are_rounded() -> None:
    x = torch.randn(2, 6, 5, 4)
    for each in (x.contiguous(memory_format=torch.channels_last), x[:, ::2], x.permute(3, 1, 0, 2)):
        assert torch.equal(to_bf16(each), each.to(HALF))


# -- products -------------------------------------------------------------------------------------


@every_layer
def test_products_are_those_of_torch_in_bfloat16(kind) -> None:
    layer, x = make(kind)
    y, grad_x, grad_w, grad_bias = step(layer, x)
    plain = LAYERS[kind][0]().to(HALF)
    plain.load_state_dict(bc.float_state_dict(layer))
    half = x.detach().to(HALF).requires_grad_()
    expected = step(plain, half)
    for found, other in zip((y, grad_x, grad_w), expected, strict=False):
        assert found.dtype is torch.float32
        assert torch.equal(found, other.float())
    # of the error itself, in float32
    assert (grad_bias - expected[3].float()).norm() <= 2**-7 * grad_bias.norm()


@every_layer
def test_results_are_within_2_to_the_minus_8_of_simulate(kind) -> None:
    layer, x = make(kind)
    found = step(layer, x)
    expected = step(*make(kind, "simulate"))
    for ours, other in zip(found, expected, strict=True):
        assert (ours - other).norm() <= 2**-8 * other.norm()
    assert not torch.equal(found[0], expected[0])


def test_a_product_of_activations_is_in_bfloat16() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 8, 16), torch.randn(2, 3, 16, 8)
    layer = bc.quantize_model(bc.MatMul(), kernel="bf16")
    bc.set_precision(layer, "bf16")
    assert torch.equal(layer(a, b), (a.to(HALF) @ b.to(HALF)).float())


def test_a_recurrent_layer_multiplies_in_bfloat16() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 4, 24)
    build = nn.LSTM(24, 32)
    outputs = {}
    for kernel in ("simulate", "bf16"):
        layer = bc.quantize_model(copy.deepcopy(build), kernel=kernel)
        bc.set_precision(layer, "bf16")
        output = layer(x)[0]
        output.sum().backward()
        outputs[kernel] = output.detach(), layer.weight_hh_l0.grad
    for ours, other in zip(*outputs.values(), strict=True):
        assert not torch.equal(ours, other)
        assert (ours - other).norm() <= 2**-6 * other.norm()  # over five time steps


def test_only_two_operands_at_bf16_make_a_bfloat16_product() -> None:
    for precision in ("w=bf16,a=bf16", "w=bf16,a=8", "w=fp16,a=bf16", "fp16"):
        layer, x = make("linear", precision=precision)
        simulated, x2 = make("linear", "simulate", precision)
        layer.train(), simulated.train()
        y, grad_x, grad_w, _ = step(layer, x)
        y2, grad_x2, grad_w2, _ = step(simulated, x2)
        is_bf16 = precision == "w=bf16,a=bf16"
        assert torch.equal(y, y2) is not is_bf16
        assert torch.equal(grad_x, grad_x2)  # the error is float32, or fp16
        assert torch.equal(grad_w, grad_w2)


def test_float64_stays_float64() -> None:
    layer, x = make("linear")
    simulated, _ = make("linear", "simulate")
    x = x.detach().double()
    assert torch.equal(layer.double()(x), simulated.double()(x))


def test_a_depthwise_convolution_stays_float32() -> None:
    torch.manual_seed(0)
    conv, x = nn.Conv2d(8, 8, 3, stride=2, groups=8), torch.randn(2, 8, 9, 9)
    outputs = []
    for kernel in ("simulate", "bf16"):
        layer = bc.quantize_model(copy.deepcopy(conv), kernel=kernel)
        bc.set_precision(layer, "bf16")
        outputs.append(layer(x))
    assert torch.equal(*outputs)


def test_backward_keeps_half_of_what_it_kept() -> None:
    sizes = {}
    for kernel in ("simulate", "bf16"):
        layer, x = make("linear", kernel)
        saved = saved_bytes(layer, lambda m, x=x: m(x).sum(), exclude=(x,))
        sizes[kernel] = saved.num_bytes
    operands = 4 * (3 * 7 * 48 + 48 * 40)
    assert sizes["simulate"] >= operands
    assert sizes["bf16"] == sizes["simulate"] - operands // 2


# -- around a layer -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_inside_autocast_a_layer_computes_what_the_float_layer_does(kind) -> None:
    layer, x = make(kind)
    plain = LAYERS[kind][0]()
    plain.load_state_dict(bc.float_state_dict(layer))
    results = []
    for module in (layer, plain):
        with torch.autocast("cpu", dtype=HALF):
            y = module(x)
        x.grad = None
        y.float().square().sum().backward()
        results.append((y.detach(), x.grad, module.weight.grad))
    for ours, other in zip(*results, strict=True):
        assert ours.dtype is other.dtype
        assert torch.equal(ours, other)


def test_a_bfloat16_model_takes_bfloat16_products() -> None:
    layer, x = make("linear")
    layer.to(HALF)
    y = layer(x.detach().to(HALF))
    assert y.dtype is HALF
    assert torch.equal(y, F.linear(x.to(HALF), layer.weight, layer.bias))


@every_layer
def test_checkpointing_repeats_the_products(kind) -> None:
    layer, x = make(kind)
    plain = step(layer, x)
    again = step(layer, x, lambda x: checkpoint(layer, x, use_reentrant=False))
    assert all(map(torch.equal, plain, again))


def test_an_operand_that_is_not_finite_is_noticed() -> None:
    for role, place in (("weight", 0), ("act", 1), ("error", 2)):
        layer, x = make("linear")
        if role == "weight":
            layer.weight.data[0, 0] = float("inf")
        elif role == "act":
            x.data[0, 0, 0] = float("nan")
        y = layer(x)
        y.backward(torch.full_like(y, float("inf") if role == "error" else 1.0))
        assert layer.health[place].isnan()
        if role == "error":
            assert not layer.health[:2].isnan().any()


def test_calibration_observes_ranges_at_bf16() -> None:
    layer, x = make("linear")
    bc.calibrate(layer, [x.detach()])
    _, low, spread = layer.act_range[0].tolist()
    assert low == x.min().item()
    assert low + spread == pytest.approx(x.max().item())


def test_layers_that_read_one_tensor_round_it_once(monkeypatch) -> None:
    calls = []

    def spy(x: Tensor, flag: Tensor | None = None) -> Tensor:
        calls.append(x.shape)
        return to_bf16(x, flag)

    monkeypatch.setattr("bitcycle.nn.rounding.to_bf16", spy)
    model = bc.quantize_model(nn.ModuleList(nn.Linear(16, 8) for _ in range(3)), kernel="bf16")
    bc.set_precision(model, "bf16")
    x = torch.randn(4, 16, requires_grad=True) * 2
    outputs = [layer(x) for layer in model]
    assert len(outputs) == 3
    assert calls.count(x.shape) == 1
