"""The quantized product as an autograd function, with every kernel: values, saved bytes, health."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.kernels import make_kernel
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.memory import saved_bytes
from bitcycle.nn.control import (
    CLOCK,
    CONTROL_SIZE,
    LEVELS,
    advance_clocks,
    control_for_product,
)
from bitcycle.nn.plan import make_plan
from bitcycle.nn.rounding import (
    differentiable_once,
    round_error_straight_through,
    round_straight_through,
)
from bitcycle.nn.saved import NUM_SAVED_TENSORS, restore_operand, save_operand
from bitcycle.ops.noise import noise_key
from bitcycle.quantizers import SBM
from bitcycle.quantizers.base import Quantized

from .. import naive
from ..kernels.operands import FUNCTIONS, counted
from .layers import convert, describe, expected_products, run

SLOTS = {"weight": 0, "act": 1, "error": 2}  # of the health buffer


class NoHostRead(TorchDispatchMode):
    """Forbids what would make the host wait for the device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        if func.overloadpacket.__name__ in ("_local_scalar_dense", "is_nonzero", "nonzero"):
            raise AssertionError(f"host read: {func}")
        return func(*args, **(kwargs or {}))


def _linear_layer(precision: str = "w4a4e4", **rules: Any) -> bc.nn.QuantizedLayer:
    torch.manual_seed(0)
    return convert(nn.Linear(4, 3), precision, **rules)


KERNELS = ["simulate", "native"]


def test_finite_operands_leave_the_health_at_zero() -> None:
    for kernel in KERNELS:
        layer = _linear_layer(kernel=kernel)
        run(layer, torch.randn(2, 4))
        run(layer.eval(), torch.randn(2, 4))
        assert layer.health.tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("watch", [NoHostRead, nullcontext])  # who watches gets separate products
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("role", SLOTS)
def test_an_operand_that_is_not_finite_marks_its_role_for_good(
    role: str, kernel: str, watch: Callable[[], Any]
) -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        layer = _linear_layer(kernel=kernel)
        x, e = torch.randn(2, 4), torch.randn(2, 3)
        if role == "weight":
            with torch.no_grad():
                layer.weight[1, 2] = bad
        else:
            (x if role == "act" else e)[1, 2] = bad
        with watch():
            run(layer, x, e)
        sick = [not healthy for healthy in layer.health.isfinite().tolist()]
        assert sick[SLOTS[role]]
        if role == "error":
            assert sick == [False, False, True, False]
        with torch.no_grad():
            layer.weight.fill_(0.1)
        run(layer, torch.randn(2, 4))
        assert not layer.health.isfinite()[SLOTS[role]]


def test_a_model_can_be_converted_and_used_inside_inference_mode() -> None:
    for kernel in KERNELS:
        with torch.inference_mode():
            layer = _linear_layer(kernel=kernel)
            assert layer(torch.randn(2, 4)).shape == (2, 3)
            bc.set_precision(layer, "w8a8e8")
            assert layer.control[0] == 255


def test_only_the_gradients_that_are_needed_are_computed() -> None:
    for kernel, frozen in itertools.product(KERNELS, ("weight", "input", "bias")):
        layer = _linear_layer(kernel=kernel)
        x = torch.randn(2, 4, requires_grad=frozen != "input")
        layer.weight.requires_grad_(frozen != "weight")
        layer.bias.requires_grad_(frozen != "bias")
        layer(x).sum().backward()
        assert (layer.weight.grad is None) == (frozen == "weight")
        assert (layer.bias.grad is None) == (frozen == "bias")
        assert (x.grad is None) == (frozen == "input")


def test_an_ambient_autocast_does_not_lower_the_grids() -> None:
    for kind in ("linear", "matmul"):
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            x = torch.randn(5, 4).to(dtype)
            e = torch.randn(5, 3).bfloat16()
            if kind == "linear":
                layer = _linear_layer("w8a8e8")
                expected = expected_products(layer, x.float(), e.float(), weight=8, act=8, error=8)
                with torch.autocast("cpu", torch.bfloat16):
                    result = run(layer, x, e)
                output, gradient = result.output, result.grad_weight
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
                gradient, theirs = b.grad, [exact.output, exact.grad_weight]
            assert (output.dtype, gradient.dtype) == (torch.bfloat16, torch.float32)
            rounded = output.detach().float(), gradient
            for one, other, tolerance in zip(rounded, theirs, (2**-8, 1e-5), strict=True):
                torch.testing.assert_close(one, other.float(), rtol=tolerance, atol=1e-5)


def test_autocast_takes_half_precision_weights_with_a_float32_input() -> None:
    layer = _linear_layer().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        result = run(layer, torch.randn(2, 4))
    assert result.grad_weight.dtype == torch.bfloat16


def test_functional_call_takes_other_parameters_and_buffers() -> None:
    layer, x = _linear_layer(), torch.randn(2, 4)
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


def _rounded_error(layer: nn.Module, e: Tensor) -> Tensor:
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
    mean = sum(
        (_rounded_error(layer, e).double() for _ in range(num)), torch.zeros_like(e).double()
    )
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
    seen = [_rounded_error(model[0], e), _rounded_error(model[0], e), _rounded_error(model[1], e)]
    advance_clocks(model, 1)
    seen.append(_rounded_error(model[0], e))
    advance_clocks(model, 0)
    assert torch.equal(_rounded_error(model[0], e), seen[0])  # the same step, layer and call
    for i, first in enumerate(seen):
        assert all(not torch.equal(first, second) for second in seen[i + 1 :])


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


def _random_error(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        shape = copy.deepcopy(layer)(x).shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)


def _assert_close(actual: naive.Products, expected: naive.Products, tolerance: float) -> None:
    for name in ("output", "grad_input", "grad_weight"):
        ours, theirs = getattr(actual, name).double(), getattr(expected, name).double()
        distance = float((ours - theirs).norm() / theirs.norm())
        assert distance < tolerance, f"{name}: {distance:.1e}"


def _tolerance(kernel: str) -> float:
    return 2.0**-14 if kernel == "native" else 1e-5  # where scales lie on the summed axis


@pytest.mark.parametrize("kernel", KERNELS)
def test_roles_may_be_float32(kernel: str) -> None:
    all_bits = [
        (8, None, None), (None, 4, None), (None, None, 4), (8, 8, None), (8, None, 8),
        (None, 8, 8), (3, 5, 7),
    ]  # fmt: skip
    for kind, bits in itertools.product(MODULES, all_bits):
        roles = dict(zip(("weight", "act", "error"), bits, strict=True))
        layer, x = _converted(kind, kernel, str(bc.Precision(**roles)))
        e = _random_error(layer, x)
        expected = expected_products(layer, x, e, **roles)
        _assert_close(run(layer, x, e), expected, _tolerance(layer.kernel.name))


@pytest.mark.parametrize("kernel", KERNELS)
def test_half_precision_models_have_float32_grids(kernel: str) -> None:
    for precision in ("w8a8e8", "a4e4"):
        for kind in ("linear", "transposed"):
            for dtype in (torch.bfloat16, torch.float16):
                layer, x = _converted(kind, kernel, precision)
                layer, x = layer.to(dtype), x.to(dtype)
                e = _random_error(layer, x)
                result = run(layer, x, e)
                reference, _ = _converted(kind, "simulate", precision)
                reference.load_state_dict(layer.state_dict())
                expected = run(reference, x.float(), e.float())
                for name in ("output", "grad_input", "grad_weight"):
                    assert getattr(result, name).dtype == dtype
                _assert_close(result, expected, 2.0**-6)


def test_float64_models_are_multiplied_in_float64() -> None:
    for kind in MODULES:
        for kernel in KERNELS:
            layer, x = _converted(kind, kernel, "w8a8e8")
            layer, x = layer.double(), x.double()
            e = _random_error(layer, x)
            with counted() as calls:
                result = run(layer, x, e)
            assert not any(calls[name] for name in FUNCTIONS)
            assert result.output.dtype == torch.float64
            expected = expected_products(layer, x, e, weight=8, act=8, error=8)
            _assert_close(result, expected, 1e-12)


def test_native_forms_the_products_of_codes() -> None:
    for kind, expected in (
        ("linear", {"gemm": 3}),
        ("conv", {"conv_output": 2, "conv_grad_weight": 1}),
    ):
        layer, x = _converted(kind, "native", "w7a7e7", grad_input_weight="per_input_channel")
        x.requires_grad_()
        with counted() as calls:
            layer(x).square().sum().backward()
        assert calls == expected


@pytest.mark.parametrize("kernel", KERNELS)
def test_grad_input_can_read_the_weight_on_a_grid_per_input_channel(kernel: str) -> None:
    for kind in ("linear", "conv", "strided"):
        for bits in (3, 8):
            precision = f"w{bits}a{bits}e{bits}"
            layer, x = _converted(kind, kernel, precision, grad_input_weight="per_input_channel")
            e = _random_error(layer, x)
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
            _assert_close(result, expected, _tolerance(layer.kernel.name))
            shared, _ = _converted(kind, kernel, precision)
            is_other_grid = not torch.equal(run(shared, x, e).grad_input, result.grad_input)
            assert is_other_grid == (kind != "strided")


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    for kind in ("linear", "conv"):
        for kernel in KERNELS:
            for precision in ("w4a4e4", "w8a8e8"):
                layer, x = _converted(kind, kernel, precision, error_rounding="stochastic")
                x.requires_grad_()
                loss = layer(x).square().sum()
                leaves = (x, *layer.parameters())
                first = torch.autograd.grad(loss, leaves, retain_graph=True)
                second = torch.autograd.grad(loss, leaves)
                assert all(map(torch.equal, first, second))
                with pytest.raises(RuntimeError, match="second time"):
                    torch.autograd.grad(loss, leaves)


def test_forward_without_gradients_computes_the_same() -> None:
    for kernel in KERNELS:
        layer, x = _converted("conv", kernel, "w4a4e4")
        expected = layer(x).detach()
        with torch.no_grad():
            result = layer(x)
            assert torch.equal(result, expected)
            assert result.grad_fn is None
        with torch.inference_mode():
            assert torch.equal(layer(x), expected)
        run(layer, x)


def test_a_step_reads_nothing_back_to_the_host() -> None:
    for kind in ("linear", "conv"):
        for kernel in KERNELS:
            layer, x = _converted(kind, kernel, "w7a7e7")
            x.requires_grad_()
            layer(x).square().sum().backward()  # what a processor can is found out once
            with NoHostRead():
                layer(x).square().sum().backward()
                layer.eval()(x)


@pytest.mark.parametrize("is_autocast", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradient_checkpointing_changes_nothing(kernel: str, is_autocast: bool) -> None:
    for reentrant in (True, False):
        for precision in ("w4a4e4", "w8a8e8"):
            torch.manual_seed(0)
            plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 6))
            bc.quantize_model(plain, kernel=kernel)
            bc.set_precision(plain, precision)
            checkpointed = copy.deepcopy(plain)
            x = torch.randn(5, 3, 5, 5, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
                plain(x).square().sum().backward()
                checkpoint(checkpointed, x, use_reentrant=reentrant).square().sum().backward()
            for ours, theirs in zip(checkpointed.parameters(), plain.parameters(), strict=True):
                assert torch.equal(ours.grad, theirs.grad)
            for ours, theirs in zip(checkpointed.buffers(), plain.buffers(), strict=True):
                assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("precision", ["w8a8e8", "w4a4e8", "w8a8", "w8e8", "a8e8"])
def test_autocast_rounds_the_results_of_every_kernel_and_nothing_else(kind, precision) -> None:
    """Codes and sums are those of the same numbers in float32, and weight gradients too."""
    for kernel in KERNELS:
        for dtype in (torch.float32, torch.bfloat16):
            layer, x = _converted(kind, kernel, precision)
            x = x.bfloat16().to(dtype)
            e = _random_error(layer, x.float()).bfloat16()
            twin = copy.deepcopy(layer)
            expected = run(twin, x.float(), e.float())
            with torch.autocast("cpu", torch.bfloat16):
                result = run(layer, x, e)
            assert torch.equal(result.output, expected.output.bfloat16())
            assert torch.equal(result.grad_input, expected.grad_input.to(dtype))
            assert torch.equal(result.grad_weight, expected.grad_weight)
            assert torch.equal(layer.act_range, twin.act_range)


def test_a_float16_autocast_is_honoured_too() -> None:
    for kernel in KERNELS:
        layer, x = _converted("linear", kernel, "w8a8e8")
        expected = copy.deepcopy(layer)(x.half().float()).half()
        with torch.autocast("cpu", torch.float16):
            assert torch.equal(layer(x.half()), expected)


def test_a_bfloat16_model_has_the_codes_of_its_numbers_in_float32() -> None:
    for kernel in KERNELS:
        layer, x = _converted("linear", kernel, "w8a8e8")
        layer.bfloat16()
        twin, x = copy.deepcopy(layer).float(), x.bfloat16()
        e = _random_error(twin, x.float()).bfloat16()
        expected, result = run(twin, x.float(), e.float()), run(layer, x, e)
        for name in ("output", "grad_input", "grad_weight"):
            assert torch.equal(getattr(result, name), getattr(expected, name).bfloat16()), name
        assert layer.act_range.dtype == torch.float32


def test_inside_autocast_no_more_is_kept_than_autocast_keeps() -> None:
    x = torch.randn(64, 128, requires_grad=True)

    def kept(model: nn.Module) -> int:
        with torch.autocast("cpu", torch.bfloat16):
            return saved_bytes(model, x).num_bytes

    for bits in ("w8a8e8", "w8", "a8e8"):
        model = nn.Sequential(nn.Linear(128, 96), nn.Linear(96, 64))
        own = bc.quantize_model(copy.deepcopy(model), kernel="native")
        bc.set_precision(own, bits)
        assert kept(own) <= 1.05 * kept(model) + 2**12


def test_channels_last_inputs_stay_channels_last() -> None:
    for kernel in KERNELS:
        layer, x = _converted("conv", kernel, "w4a4e4")
        x = x.to(memory_format=torch.channels_last)
        e = _random_error(layer, x).to(memory_format=torch.channels_last)
        result = run(layer, x, e)
        assert result.output.is_contiguous(memory_format=torch.channels_last)
        assert result.grad_input.is_contiguous(memory_format=torch.channels_last)


def test_batches_of_any_shape_are_multiplied() -> None:
    for kernel in KERNELS:
        for shape in ((0, 12), (1, 12), (12,), (2, 3, 12)):
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


MISFITS = {
    "features": (lambda: nn.Linear(4, 3), [(5, 7)]),
    "channels": (lambda: nn.Conv2d(2, 4, 3, padding=1), [(4, 7, 6, 6)]),
    "channels of groups": (lambda: nn.Conv2d(4, 4, 3, groups=2), [(4, 2, 6, 6)]),
    "one dimension": (lambda: nn.Conv1d(2, 4, 3), [(4, 3, 6)]),
    "a kernel larger than the map": (lambda: nn.Conv2d(2, 4, 3), [(2, 2, 2, 2)]),
    "matrices": (bc.MatMul, [(3, 4), (5, 6)]),
    "batches of matrices": (bc.MatMul, [(2, 3, 4), (2, 5, 6)]),
    "a matrix for all batches": (bc.MatMul, [(2, 3, 4), (5, 6)]),
}


@pytest.mark.parametrize("grids", ["shared", "per_input_channel"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("what", MISFITS)
def test_operands_that_do_not_fit_are_refused(what: str, kernel: str, grids: str) -> None:
    make, shapes = MISFITS[what]
    inputs = [torch.ones(shape) for shape in shapes]
    layer = make()
    with pytest.raises(RuntimeError):
        layer(*inputs)
    with pytest.raises(RuntimeError):
        convert(layer, "w8a8e8", kernel=kernel, grad_input_weight=grids)(*inputs)


def test_a_product_of_activations_is_multiplied_from_codes() -> None:
    torch.manual_seed(0)
    product = bc.quantize_model(bc.MatMul(), SBM(error_rounding="nearest"), kernel="native")
    bc.set_precision(product, "a6e6")
    a, b, e = torch.randn(2, 4, 7), torch.randn(7, 5), torch.randn(2, 4, 5)
    leaves = a.requires_grad_(), b.requires_grad_()
    with counted() as calls:
        output = product(a, b)
        grads = torch.autograd.grad(output, leaves, e)
    assert calls == {"gemm": 3}
    grids = [naive.per_tensor(t.detach(), 6) for t in (a, b, e)]
    result = naive.Products(output.detach(), *grads)
    _assert_close(result, naive.matmul(*grids), _tolerance("native"))


def test_a_copy_of_an_undecided_layer_decides_too() -> None:
    model = bc.quantize_model(nn.Linear(4, 4))
    bc.set_precision(model, "w8a8e8")
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    decisions = []
    for layer in (model, *others):
        layer(torch.randn(2, 4))
        decisions.append((layer.kernel.name, layer.kernel_reason))
    assert decisions[1:] == decisions[:1] * 2
    assert decisions[0][1].startswith("auto: ")


def test_an_evaluation_at_more_bits_leaves_no_trace() -> None:
    model = bc.quantize_model(nn.Linear(4, 4), kernel="native")
    bits = bc.PrecisionScheduler(model, forward=4, backward=7, total_steps=3)

    def tops() -> tuple[int, ...]:
        plan = model.plan(LinearGeometry(), torch.ones(2, 4), model.weight)
        roundings = plan.output.second, plan.output.first, plan.grad_input.first, plan.grad
        found = tuple(rounding.top for rounding in roundings)
        assert found == model.code_tops
        return found

    before = tops()
    with bc.at_precision(model, "w8a8"):
        assert tops() != before
    assert tops() == before == (4, 4, 7, 7)
    bits.step()
    assert tops() == before


def test_auto_goes_by_the_bits_a_schedule_reaches_and_not_by_those_it_begins_with() -> None:
    model = bc.quantize_model(nn.Linear(4, 4))
    bc.PrecisionScheduler(model, weight=7, act="stages:fp32@0.5,7", backward=8, total_steps=4)
    model(torch.randn(2, 4))
    static = bc.quantize_model(nn.Linear(4, 4))
    bc.set_precision(static, "w7a7e8")
    static(torch.randn(2, 4))
    assert model.kernel_reason == static.kernel_reason  # not: an operand is float32


LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
}


def _codes(top: int, layout: str = "contiguous") -> Quantized:
    x = LAYOUTS[layout](torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0)))
    sbm = SBM()
    bits = torch.tensor(2 ** min(top, 8) - 1)
    return replace(sbm.encode("act", x, bits, sbm.range_of("act", x), as_codes=True), top=top)


def test_an_operand_comes_back_as_it_was() -> None:
    for layout in LAYOUTS:
        for top in (2, 4, 7, 8):
            q = _codes(top, layout)
            tensors, form = save_operand(q)
            assert len(tensors) == NUM_SAVED_TENSORS
            back = restore_operand(tensors, form)
            assert torch.equal(back.codes, q.codes)
            assert back.codes.dtype == q.codes.dtype
            assert back.codes.stride() == q.codes.stride()
            assert back.top == q.top
            assert back.values is None
            for name in ("scale", "offset", "half"):
                assert getattr(back, name) is getattr(q, name)


def test_codes_of_up_to_4_bits_share_a_byte() -> None:
    for top, expected in ((2, 105), (4, 105), (5, 210), (8, 210)):
        tensors, _ = save_operand(_codes(top))  # 210 elements
        codes = tensors[1]
        assert codes.dtype == torch.uint8
        assert codes.numel() == expected


def test_values_and_nothing_are_saved_as_they_are() -> None:
    x = torch.randn(3)
    back = restore_operand(*save_operand(Quantized(values=x, top=4)))
    assert back.values is x
    assert back.codes is None
    nothing = restore_operand(*save_operand(Quantized()))
    assert nothing.values is nothing.codes is nothing.scale is None


def _saved_bytes(layer: nn.Module, x: Tensor) -> int:
    """Bytes that the forward pass keeps, parameters and the layer's own buffers aside."""
    own = {t.untyped_storage().data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    seen: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = layer(x)
    total = sum(seen.values())
    del output
    return total


SMALL = 64  # bytes for scales, offsets and halves of one activation


def test_a_layer_saves_one_byte_per_code_or_half_a_byte() -> None:
    for kernel, precision, act, weight in (
        ("native", "w8a8e8", 1.0, 1.0),
        ("native", "w4a4e8", 0.5, 0.5),
        ("native", "w8a3e8", 0.5, 1.0),
        ("native", "w8e8", 4.0, 1.0),
        ("simulate", "w4a4e8", 4.0, 4.0),
    ):
        layer = bc.quantize_model(nn.Conv2d(16, 8, 3, bias=False), kernel=kernel)
        bc.set_precision(layer, precision)
        x = torch.randn(4, 16, 12, 12, requires_grad=True)
        expected = act * x.numel() + weight * layer.weight.numel()
        overhead = 4 * SMALL + 2 * 4 * 8  # scales and offsets of 8 channels
        assert expected <= _saved_bytes(layer, x) <= expected + overhead


def test_only_what_a_gradient_needs_is_saved() -> None:
    for kernel in KERNELS:
        layer = bc.quantize_model(nn.Linear(64, 8, bias=False), kernel=kernel)
        bc.set_precision(layer, "w8a8e8")
        x = torch.randn(100, 64)
        size = 4 if kernel == "simulate" else 1
        # no gradient of the input: no weight is kept
        assert _saved_bytes(layer, x) <= size * x.numel() + SMALL
        layer.weight.requires_grad_(False)
        # and none of the weight: no input is
        assert (
            _saved_bytes(layer, x.requires_grad_()) <= size * layer.weight.numel() + SMALL + 8 * 8
        )
        with torch.no_grad():
            assert _saved_bytes(layer, x) == 0


def test_a_second_grid_of_the_weight_is_what_grad_input_keeps() -> None:
    rules = SBM(grad_input_weight="per_input_channel")
    layer = bc.quantize_model(nn.Linear(64, 8, bias=False), rules, kernel="native")
    bc.set_precision(layer, "w8a8e8")
    x = torch.randn(100, 64, requires_grad=True)
    expected = x.numel() + layer.weight.numel() + 2 * 4 * 64  # a scale and an offset per column
    assert expected <= _saved_bytes(layer, x) <= expected + 2 * SMALL


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


def _twice(x: Tensor) -> Tensor:
    output: Tensor = _Twice.apply(x)  # type: ignore[no-untyped-call]
    return output


def test_a_second_one_is_an_error_whether_the_incoming_gradient_is_constant_or_not() -> None:
    for weight in (1.0, torch.ones((), requires_grad=True)):
        x = torch.ones(3, requires_grad=True)
        (first,) = torch.autograd.grad((_twice(x) * weight).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.square().sum().backward()


def _twice_used() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
    bc.quantize_model(model)
    bc.set_precision(model, "w4a4e4")
    return model


def _grads(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def _state(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def test_a_layer_used_twice_before_the_backward_keeps_the_noise_of_each_use() -> None:
    plain = _twice_used()
    checkpointed = copy.deepcopy(plain)
    x = torch.randn(5, 6, requires_grad=True)
    plain(plain(x)).square().sum().backward()
    inner = checkpoint(checkpointed, x, use_reentrant=False)
    checkpoint(checkpointed, inner, use_reentrant=False).square().sum().backward()
    assert all(map(torch.equal, _state(checkpointed), _state(plain)))
    assert all(map(torch.equal, _grads(checkpointed), _grads(plain)))


def test_parts_of_a_call_have_keys_of_their_own_and_leave_the_clock_alone() -> None:
    control = torch.arange(CONTROL_SIZE, dtype=torch.int32)
    parts = [control_for_product(control, part) for part in range(50)]
    keys = {tuple(noise_key(part[CLOCK]).tolist()) for part in parts}
    assert len(keys) == 50
    assert control_for_product(control, 0) is control
    assert control.tolist() == list(range(CONTROL_SIZE))
    for part in parts:
        assert torch.equal(part[: CLOCK.start], control[: CLOCK.start])
        assert torch.equal(part[CLOCK.start + 1 :], control[CLOCK.start + 1 :])


PLAN = make_plan(
    SBM(error_rounding="nearest"),
    LinearGeometry(),
    make_kernel("simulate"),
    kinds=(None, "integer", "integer", None),
)
X = torch.tensor([[-1.0, -0.4, 0.1, 0.7, 2.0], [0.0, 5.0, 1.0, 2.0, 3.0]])


def control(**bits):
    numbers = torch.zeros(CONTROL_SIZE, dtype=torch.int32)
    for role, number in bits.items():
        numbers[LEVELS[role]] = 2**number - 1
    return numbers


def test_an_activation_is_on_its_grid_and_its_error_passes():
    x = X.clone().requires_grad_()
    y = round_straight_through(PLAN, x, control(act=3), PLAN.quantizer.range_of("act", X, (0,)))
    assert torch.equal(y, naive.per_channel(X, 3))
    (grad,) = torch.autograd.grad(y, x, X)
    assert torch.equal(grad, X)


def test_a_tensor_passes_and_its_error_is_on_its_grid():
    x, health = X.clone().requires_grad_(), torch.zeros(4)
    y = round_error_straight_through(PLAN, x, control(error=3), health)
    assert torch.equal(y, X)
    (grad,) = torch.autograd.grad(y, x, X)
    assert torch.equal(grad, naive.per_tensor(X, 3))
    assert torch.equal(health, torch.zeros(4))


def test_an_error_that_is_not_finite_shows_in_the_health():
    x, health = X.clone().requires_grad_(), torch.zeros(4)
    round_error_straight_through(PLAN, x, control(error=3), health).backward(X * torch.inf)
    assert health[LEVELS["error"]].isnan()
