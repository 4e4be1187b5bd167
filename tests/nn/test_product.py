"""The quantized product as an autograd function, and the tensors it watches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import bitcycle as bc

from .. import naive
from .layers import convert, expected_products, run

SLOTS = {"weight": 0, "act": 1, "error": 2}  # of the health buffer


class NoHostRead(TorchDispatchMode):
    """Forbids what would make the host wait for the device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        if func.overloadpacket.__name__ in ("_local_scalar_dense", "is_nonzero", "nonzero"):
            raise AssertionError(f"host read: {func}")
        return func(*args, **(kwargs or {}))


def _layer(precision: str = "w4a4e4", **rules: Any) -> bc.nn.QuantizedLayer:
    torch.manual_seed(0)
    return convert(nn.Linear(4, 3), precision, **rules)


def test_a_step_reads_nothing_back_to_the_host() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 4))
    bc.quantize_model(model)
    bc.set_precision(model, "w4a4e4")
    x = torch.randn(2, 3, 4, 4)
    with NoHostRead():
        model(x).square().sum().backward()
        model.eval()(x)
    with pytest.raises(AssertionError, match="host read"), NoHostRead():
        x.sum().item()


def test_finite_operands_leave_the_health_at_zero() -> None:
    layer = _layer()
    run(layer, torch.randn(2, 4))
    run(layer.eval(), torch.randn(2, 4))
    assert layer.health.tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("role", SLOTS)
def test_an_operand_that_is_not_finite_marks_its_role_for_good(role: str, bad: float) -> None:
    layer = _layer()
    x, e = torch.randn(2, 4), torch.randn(2, 3)
    if role == "weight":
        with torch.no_grad():
            layer.weight[1, 2] = bad
    else:
        (x if role == "act" else e)[1, 2] = bad
    with NoHostRead():
        run(layer, x, e)
    sick = [not healthy for healthy in layer.health.isfinite().tolist()]
    assert sick[SLOTS[role]]
    if role == "error":
        assert sick == [False, False, True, False]
    with torch.no_grad():
        layer.weight.fill_(0.1)
    run(layer, torch.randn(2, 4))
    assert not layer.health.isfinite()[SLOTS[role]]


def test_a_role_without_bits_is_not_watched() -> None:
    layer = _layer("w4")
    run(layer, torch.full((2, 4), float("nan")), torch.full((2, 3), float("nan")))
    assert layer.health.tolist() == [0.0] * 4


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_retained_graph_gives_the_same_gradients_again(rounding: str) -> None:
    layer = _layer(error_rounding=rounding)
    x = torch.randn(2, 4, requires_grad=True)
    loss = layer(x).square().sum()
    first = torch.autograd.grad(loss, (x, layer.weight), retain_graph=True)
    second = torch.autograd.grad(loss, (x, layer.weight))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_second_derivative_is_refused() -> None:
    layer = _layer()
    x = torch.randn(2, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()


def test_forward_without_gradients_computes_the_same() -> None:
    layer, x = _layer(), torch.randn(2, 4)
    expected = layer(x).detach()
    with torch.no_grad():
        assert torch.equal(layer(x), expected)
    with torch.inference_mode():
        assert torch.equal(layer(x), expected)
    run(layer, x)  # and training goes on after it


def test_a_model_can_be_converted_and_used_inside_inference_mode() -> None:
    with torch.inference_mode():
        layer = _layer()
        assert layer(torch.randn(2, 4)).shape == (2, 3)
        bc.set_precision(layer, "w8a8e8")
        assert layer.control[0] == 255


@pytest.mark.parametrize("frozen", ["weight", "input", "bias"])
def test_only_the_gradients_that_are_needed_are_computed(frozen: str) -> None:
    layer = _layer()
    x = torch.randn(2, 4, requires_grad=frozen != "input")
    layer.weight.requires_grad_(frozen != "weight")
    layer.bias.requires_grad_(frozen != "bias")
    layer(x).sum().backward()
    assert (layer.weight.grad is None) == (frozen == "weight")
    assert (layer.bias.grad is None) == (frozen == "bias")
    assert (x.grad is None) == (frozen == "input")


@pytest.mark.parametrize("kind", ["linear", "matmul"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_ambient_autocast_does_not_lower_the_grids(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 4).to(dtype)
    e = torch.randn(5, 3)
    if kind == "linear":
        layer = _layer("w8a8e8")
        expected = expected_products(layer, x.float(), e, weight=8, act=8, error=8)
        with torch.autocast("cpu", torch.bfloat16):
            result = run(layer, x, e)
        ours = [result.output, result.grad_weight]
        theirs = [expected.output, expected.grad_weight]
    else:
        product = convert(bc.MatMul(), "a8e8")
        b = torch.randn(4, 3, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            output = product(x, b)
        output.backward(e)
        grids = [naive.per_tensor(t.detach().float(), 8) for t in (x, b, e)]
        exact = naive.matmul(*grids)
        assert b.grad is not None
        ours, theirs = [output.detach(), b.grad], [exact.output, exact.grad_weight]
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-5)


def test_autocast_takes_half_precision_weights_with_a_float32_input() -> None:
    layer = _layer().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        result = run(layer, torch.randn(2, 4))
    assert result.grad_weight.dtype == torch.bfloat16


def test_mixed_dtypes_without_autocast_are_torch_s_error() -> None:
    with pytest.raises(RuntimeError, match="same dtype"):
        _layer()(torch.randn(2, 4, dtype=torch.float64))


def test_functional_call_takes_other_parameters_and_buffers() -> None:
    layer, x = _layer(), torch.randn(2, 4)
    other = {"weight": torch.randn(3, 4, requires_grad=True), "bias": torch.zeros(3)}
    output = torch.func.functional_call(layer, other, (x,))
    expected = naive.linear(
        naive.per_tensor(x, 4), naive.per_channel(other["weight"].detach(), 4), None,
        torch.zeros(2, 3),
    ).output  # fmt: skip
    torch.testing.assert_close(output.detach(), expected.float())
    output.sum().backward()
    assert other["weight"].grad is not None
    assert layer.weight.grad is None
    before = layer.act_range.clone()
    buffers = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    torch.func.functional_call(layer, {**other, **buffers}, (10 * x,))
    assert torch.equal(layer.act_range, before)
    assert not torch.equal(buffers["act_range"], before)


def _error_seen(layer: nn.Module, e: Tensor) -> Tensor:
    """The error after its rounding: a unit weight hands it to grad_input."""
    x = torch.zeros(e.shape, requires_grad=True)
    layer(x).backward(e)
    assert x.grad is not None
    return x.grad


def test_the_stochastic_error_of_a_layer_is_unbiased() -> None:
    torch.manual_seed(0)
    layer = convert(nn.Linear(64, 64, bias=False), "e3", error_rounding="stochastic")
    with torch.no_grad():
        layer.weight.copy_(torch.eye(64))
    e = torch.rand(16, 64)
    e[0, 0], e[0, 1] = 0.0, 1.0
    num = 200
    mean = sum((_error_seen(layer, e).double() for _ in range(num)), torch.zeros_like(e).double())
    place = (e.double() * 7) % 1
    deviation = (place * (1 - place) / num).sqrt() / 7
    inner = deviation > 1e-4
    z = ((mean / num - e) / deviation)[inner]
    # the mean of z in standard errors, and the largest of 1024: both 1e-6 two-sided
    assert abs(float(z.sum())) / z.numel() ** 0.5 < 4.9
    assert float(z.abs().max()) < 7  # binomial tails are a little heavier than normal ones


def test_every_call_every_layer_and_every_step_has_noise_of_its_own() -> None:
    e = torch.rand(8, 64, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    bc.quantize_model(model)
    bc.set_precision(model, "e3")
    with torch.no_grad():
        for layer in model:
            layer.weight.copy_(torch.eye(64))
    seen = [_error_seen(model[0], e), _error_seen(model[0], e), _error_seen(model[1], e)]
    bc.nn.base.advance_clocks(model, 1)
    seen.append(_error_seen(model[0], e))
    bc.nn.base.advance_clocks(model, 0)
    assert torch.equal(_error_seen(model[0], e), seen[0])  # the same step, layer and call
    for i, first in enumerate(seen):
        assert all(not torch.equal(first, second) for second in seen[i + 1 :])
