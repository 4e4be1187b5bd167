"""A layer's product with every kernel: dtypes, roles without bits, autograd, checkpointing."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.kernels import int8
from bitcycle.quantizers import SBM

from .. import naive
from ..kernels.operands import counted
from .layers import describe, expected_products, run
from .test_product import NoHostRead

CODED = ["dequantize", "bf16", "int8", "int8/bf16/int8"]
KERNELS = ["simulate", *CODED]
MODULES = {
    "linear": (lambda: nn.Linear(12, 5), (6, 12)),
    "conv": (lambda: nn.Conv2d(6, 4, 3, padding=1), (2, 6, 5, 7)),
    "strided": (lambda: nn.Conv2d(6, 4, 3, stride=2, groups=2), (2, 6, 5, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 3, stride=2), (2, 6, 5, 7)),
}


def _converted(kind: str, kernel: str, precision: str, **rules: Any) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = MODULES[kind]
    quantizer = SBM(**{"error_rounding": "nearest", **rules})
    layer = bc.quantize_model(make(), quantizer, kernel=kernel)
    bc.set_precision(layer, precision)
    return layer, torch.randn(shape)


def _error(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        shape = copy.deepcopy(layer)(x).shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)


def _assert_close(actual: naive.Products, expected: naive.Products, tolerance: float) -> None:
    for name in ("output", "grad_input", "grad_weight"):
        ours, theirs = getattr(actual, name).double(), getattr(expected, name).double()
        distance = float((ours - theirs).norm() / theirs.norm())
        assert distance < tolerance, f"{name}: {distance:.1e}"


def _tolerance(kernel: str) -> float:
    return 2.0**-7 if "bf16" in kernel else 1e-5


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("weight", "act", "error"),
    [(8, None, None), (None, 4, None), (None, None, 4), (8, 8, None), (8, None, 8), (None, 8, 8),
     (3, 5, 7), (8, 8, 8)],
)  # fmt: skip
def test_roles_may_be_float32(
    kind: str, kernel: str, weight: int | None, act: int | None, error: int | None
) -> None:
    bits = {"w": weight, "a": act, "e": error}
    precision = "".join(f"{role}{b}" for role, b in bits.items() if b is not None)
    layer, x = _converted(kind, kernel, precision)
    e = _error(layer, x)
    expected = expected_products(layer, x, e, weight=weight, act=act, error=error)
    _assert_close(run(layer, x, e), expected, _tolerance(layer.settings.kernel.name))


@pytest.mark.parametrize("precision", ["w8a8e8", "w8", "a4e4"])
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_have_float32_grids(
    dtype: torch.dtype, kernel: str, kind: str, precision: str
) -> None:
    layer, x = _converted(kind, kernel, precision)
    layer, x = layer.to(dtype), x.to(dtype)
    e = _error(layer, x)
    result = run(layer, x, e)
    reference, _ = _converted(kind, "simulate", precision)
    reference.load_state_dict(layer.state_dict())
    expected = run(reference, x.float(), e.float())
    for name in ("output", "grad_input", "grad_weight"):
        assert getattr(result, name).dtype == dtype
    _assert_close(result, expected, 2.0**-6)


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_float64_models_are_multiplied_in_float64(kernel: str, kind: str) -> None:
    layer, x = _converted(kind, kernel, "w8a8e8")
    layer, x = layer.double(), x.double()
    e = _error(layer, x)
    with counted() as calls:
        result = run(layer, x, e)
    assert not calls["gemm"]
    assert not calls["conv"]
    assert result.output.dtype == torch.float64
    expected = expected_products(layer, x, e, weight=8, act=8, error=8)
    _assert_close(result, expected, 1e-12)


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("kernel", ["int8", "bf16"])
def test_integer_products_are_formed_where_the_kernel_says(kernel: str, kind: str) -> None:
    layer, x = _converted(kind, kernel, "w7a7e7", grad_input_weight="per_input_channel")
    x.requires_grad_()
    with counted() as calls:
        layer(x).square().sum().backward()
    if kernel == "int8":
        assert calls == ({"gemm": 3} if kind == "linear" else {"conv": 2, "gemm": 1})
    else:
        assert not calls


@pytest.mark.parametrize("kind", ["linear", "conv", "strided"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bits", [3, 7, 8])
def test_grad_input_can_read_the_weight_on_a_grid_per_input_channel(
    kind: str, kernel: str, bits: int
) -> None:
    precision = f"w{bits}a{bits}e{bits}"
    layer, x = _converted(kind, kernel, precision, grad_input_weight="per_input_channel")
    e = _error(layer, x)
    result = run(layer, x, e)
    w = layer.weight.detach()
    a, q = naive.per_tensor(x, bits), naive.per_tensor(e, bits)
    columns = naive.per_channel(w.transpose(0, 1), bits).transpose(0, 1)
    if kind == "strided":  # an input channel of two groups has no column of its own
        columns = naive.per_channel(w, bits)
    expected = expected_products(layer, x, e, weight=bits, act=bits, error=bits)
    if kind == "linear":
        other = naive.linear(a, columns, None, q)
    else:
        other = describe(layer).products(a, columns, None, q)
    expected.grad_input = other.grad_input
    _assert_close(result, expected, _tolerance(layer.settings.kernel.name))
    shared, _ = _converted(kind, kernel, precision)
    is_other_grid = not torch.equal(run(shared, x, e).grad_input, result.grad_input)
    assert is_other_grid == (kind != "strided")


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("precision", ["w4a4e4", "w8a8e8"])
def test_a_retained_graph_gives_the_same_gradients_again(
    kernel: str, kind: str, precision: str
) -> None:
    layer, x = _converted(kind, kernel, precision, error_rounding="stochastic")
    x.requires_grad_()
    loss = layer(x).square().sum()
    leaves = (x, *layer.parameters())
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    second = torch.autograd.grad(loss, leaves)
    assert all(map(torch.equal, first, second))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("kernel", CODED)
def test_a_second_derivative_is_refused(kernel: str) -> None:
    layer, x = _converted("linear", kernel, "w4a4e4")
    x.requires_grad_()
    (grad,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()


@pytest.mark.parametrize("kernel", CODED)
def test_forward_without_gradients_computes_the_same(kernel: str) -> None:
    layer, x = _converted("conv", kernel, "w4a4e4")
    expected = layer(x).detach()
    with torch.no_grad():
        result = layer(x)
        assert torch.equal(result, expected)
        assert result.grad_fn is None
    with torch.inference_mode():
        assert torch.equal(layer(x), expected)
    run(layer, x)


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("kernel", CODED)
def test_a_step_reads_nothing_back_to_the_host(kernel: str, kind: str) -> None:
    layer, x = _converted(kind, kernel, "w7a7e7")
    x.requires_grad_()
    layer(x).square().sum().backward()  # what a processor can is found out once
    with NoHostRead():
        layer(x).square().sum().backward()
        layer.eval()(x)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("precision", ["w4a4e4", "w8a8e8"])
@pytest.mark.parametrize("kernel", CODED)
def test_gradient_checkpointing_changes_nothing(
    kernel: str, precision: str, reentrant: bool
) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 6))
    bc.quantize_model(plain, kernel=kernel)
    bc.set_precision(plain, precision)
    checkpointed = copy.deepcopy(plain)
    x = torch.randn(5, 3, 5, 5, requires_grad=True)
    plain(x).square().sum().backward()
    checkpoint(checkpointed, x, use_reentrant=reentrant).square().sum().backward()
    for ours, theirs in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    for ours, theirs in zip(checkpointed.buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kernel", CODED)
def test_an_ambient_autocast_does_not_lower_the_grids(kernel: str) -> None:
    layer, x = _converted("linear", kernel, "w8a8e8")
    e = _error(layer, x)
    expected = run(copy.deepcopy(layer), x, e)
    with torch.autocast("cpu", torch.bfloat16):
        result = run(layer, x, e)
    for name in ("output", "grad_input", "grad_weight"):
        assert torch.equal(getattr(result, name), getattr(expected, name))


@pytest.mark.parametrize("kernel", CODED)
def test_channels_last_inputs_stay_channels_last(kernel: str) -> None:
    layer, x = _converted("conv", kernel, "w4a4e4")
    x = x.to(memory_format=torch.channels_last)
    e = _error(layer, x).to(memory_format=torch.channels_last)
    result = run(layer, x, e)
    assert result.output.is_contiguous(memory_format=torch.channels_last)
    assert result.grad_input.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kernel", CODED)
@pytest.mark.parametrize("shape", [(0, 12), (1, 12), (12,), (2, 3, 12)])
def test_batches_of_any_shape_are_multiplied(kernel: str, shape: tuple[int, ...]) -> None:
    layer, _ = _converted("linear", kernel, "w4a4e4")
    x = torch.randn(shape)
    result = run(layer, x)
    assert result.output.shape == (*shape[:-1], 5)
    assert result.grad_input.shape == x.shape
    assert result.grad_weight.shape == (5, 12)
    if x.numel():
        expected = expected_products(
            layer, x, torch.ones_like(result.output), weight=4, act=4, error=4
        )
        _assert_close(result, expected, _tolerance(kernel))
    else:
        assert not result.grad_weight.any()


@pytest.mark.parametrize("kernel", CODED)
def test_a_product_of_activations_is_multiplied_from_codes(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "MIN_BATCHED", 0)
    torch.manual_seed(0)
    product = bc.quantize_model(bc.MatMul(), SBM(error_rounding="nearest"), kernel=kernel)
    bc.set_precision(product, "a6e6")
    a, b, e = torch.randn(2, 4, 7), torch.randn(7, 5), torch.randn(2, 4, 5)
    leaves = a.requires_grad_(), b.requires_grad_()
    with counted() as calls:
        output = product(a, b)
        grads = torch.autograd.grad(output, leaves, e)
    assert calls == {
        "dequantize": {}, "bf16": {}, "int8": {"gemm": 6}, "int8/bf16/int8": {"gemm": 4}
    }[kernel]  # fmt: skip
    grids = [naive.per_tensor(t.detach(), 6) for t in (a, b, e)]
    result = naive.Products(output.detach(), *grads)
    _assert_close(result, naive.matmul(*grids), _tolerance(kernel))


def test_a_copy_of_an_undecided_layer_decides_too() -> None:
    model = bc.quantize_model(nn.Linear(4, 4))
    bc.set_precision(model, "w8a8e8")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(torch.randn(2, 4))
        assert other.settings.kernel.name == "simulate"
        assert other.settings.kernel_reason == "auto: too small to gain"


def test_an_evaluation_at_more_bits_leaves_no_trace() -> None:
    model = bc.quantize_model(nn.Linear(4, 4), kernel="int8")
    bits = bc.PrecisionScheduler(model, forward=4, backward=7, total_steps=3)
    before = model._tops()
    with bc.at_precision(model, "w8a8"):
        assert model._tops() != before
    assert model._tops() == before == (4, 4, 7, 7)
    bits.step()
    assert model._tops() == before


def test_auto_goes_by_the_bits_a_schedule_reaches_and_not_by_those_it_begins_with() -> None:
    model = bc.quantize_model(nn.Linear(4, 4))
    bc.PrecisionScheduler(model, weight=7, act="stages:fp32@0.5,7", backward=8, total_steps=4)
    model(torch.randn(2, 4))
    assert model.settings.kernel_reason == "auto: too small to gain"  # not: an operand is float32
