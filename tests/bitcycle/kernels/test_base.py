"""The kernel boundary: names, and what every kernel does at the edges."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from bitcycle.kernels import (
    KERNELS,
    ConvGeometry,
    LinearGeometry,
    MatMulGeometry,
    make_kernel,
)
from bitcycle.kernels.geometry import transposed
from bitcycle.quantizers import SBM
from bitcycle.quantizers.base import Quantized

from .operands import numbers, quantized

GEOMETRY = LinearGeometry()
NAMES = KERNELS.names()


def test_every_kernel_knows_its_name() -> None:
    for name, kernel in KERNELS.items():
        assert kernel.name == name
        assert make_kernel(name) is kernel


def test_two_kernels_take_codes() -> None:
    assert [name for name in KERNELS if KERNELS[name].takes_codes] == ["gpu", "native"]
    assert KERNELS["bf16"].takes_bf16
    assert not KERNELS["simulate"].takes_bf16


def test_an_unknown_kernel_lists_the_known_ones() -> None:
    for name in ("simulat", "fp16", "int8", "native/native/native"):
        with pytest.raises(ValueError, match=rf"'{name}'.*auto, bf16, gpu, native, simulate"):
            make_kernel(name)
    with pytest.raises(ValueError, match="did you mean 'simulate'"):
        make_kernel("simulat")


def test_auto_is_a_kernel_that_simulates_until_it_is_decided() -> None:
    auto = make_kernel("auto")
    assert auto.is_undecided
    assert not make_kernel("simulate").is_undecided
    assert not auto.takes_codes
    a, w = (quantized(numbers((4, 3), "centred", seed), (4, 4)) for seed in (0, 1))
    undecided, simulated = (
        kernel.products(GEOMETRY).output(a, w, None) for kernel in (auto, KERNELS["simulate"])
    )
    assert torch.equal(undecided, simulated)


def test_a_kernel_can_be_copied_with_its_model() -> None:
    for duplicate in (copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))):
        for name in (*NAMES, "auto"):
            assert duplicate(make_kernel(name)) == make_kernel(name)


# -- every kernel, on the cases at the edges ------------------------------------------------------


@pytest.mark.parametrize("kernel", NAMES)
def test_nothing_to_multiply_gives_nothing_but_the_bias(kernel: str) -> None:
    products = make_kernel(kernel).products(GEOMETRY)
    for m, k, n in ((0, 8, 4), (3, 8, 0), (3, 0, 4)):
        a, e = quantized(torch.zeros(m, k), (8, 8)), quantized(torch.zeros(m, n), (8, 8))
        w = quantized(torch.zeros(n, k), (8, 8))
        output = products.output(a, w, torch.full((n,), 2.0))
        assert output.shape == (m, n)
        assert bool((output == 2).all())
        grad_input = products.grad_input(e, w, torch.Size((m, k)))
        grad_weight = products.grad_weight(e, a, torch.Size((n, k)))
        assert (grad_input.shape, grad_weight.shape) == ((m, k), (n, k))
        assert not grad_input.any()
        assert not grad_weight.any()


@pytest.mark.parametrize("kernel", NAMES)
def test_constant_operands_multiply_exactly(kernel: str) -> None:
    for value in (0.7, 0.0, -3.0):
        # a constant has a step of 0 and codes that weigh nothing: its value is its offset
        a = quantized(torch.full((2, 4), value), (4, 4))
        w = quantized(torch.full((3, 4), -2.0), (4, 4), keep=(0,))
        output = make_kernel(kernel).products(GEOMETRY).output(a, w, None)
        assert output.flatten().tolist() == pytest.approx([-8 * value] * 6, rel=1e-7)


@pytest.mark.parametrize("kernel", NAMES)
def test_one_nan_in_an_operand_s_range_makes_the_products_nan(kernel: str) -> None:
    products, x = make_kernel(kernel).products(GEOMETRY), numbers((6, 5), "centred", 0)
    x[2, 3] = float("nan")
    w = quantized(numbers((3, 5), "above", 1), (4, 4), keep=(0,))
    bad = quantized(x, (4, 4))
    assert products.output(bad, w, None).isnan().all()
    good = quantized(numbers((4, 6), "centred", 2), (4, 4))
    for keep in ((), (0,)):
        weight = quantized(x, (4, 4), keep=keep)
        grad = products.grad_input(good, weight, torch.Size((4, 5)))
        assert grad.isnan().all()


CONVOLUTION = ConvGeometry((1, 2), (1, 0), (1, 1), 1)
CALLERS = {
    "linear": (GEOMETRY, (2, 5, 9), (4, 9), (2, 5, 4)),
    "matmul": (MatMulGeometry(), (3, 5, 9), (3, 9, 4), (3, 5, 4)),
    "matmul, broadcast": (MatMulGeometry(), (2, 1, 5, 9), (3, 9, 4), (2, 3, 5, 4)),
    "convolution": (CONVOLUTION, (2, 3, 5, 6), (4, 3, 3, 2), (2, 4, 5, 3)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("case", CALLERS)
@pytest.mark.parametrize("kernel", NAMES)
def test_a_result_in_another_dtype_is_the_float32_one_rounded_once(kernel, case, dtype) -> None:
    geometry, *shapes = CALLERS[case]
    products = make_kernel(kernel).products(geometry)
    a, w, e = (quantized(numbers(shape, "above", i), (8, 8)) for i, shape in enumerate(shapes))
    for product, *operands in (
        (products.output, a, w, None),
        (products.grad_input, e, w, torch.Size(shapes[0])),
        (products.grad_weight, e, a, torch.Size(shapes[1])),
    ):
        expected, found = product(*operands), product(*operands, dtype)
        assert (expected.dtype, found.dtype) == (torch.float32, dtype)
        assert torch.equal(found, expected.to(dtype))
        assert found.stride() == expected.stride()


def _operand(x: Tensor, role: str, kernel: str, keep: tuple[int, ...] = ()) -> Quantized:
    rules = SBM()
    within, as_codes = rules.range_of(role, x, keep), make_kernel(kernel).takes_codes
    return rules.encode(role, x, torch.tensor(127), within, as_codes=as_codes)


@pytest.mark.parametrize("name", NAMES)
def test_a_prepacked_weight_gives_the_products_of_the_kernel_itself(name: str) -> None:
    kernel = make_kernel(name)
    products = kernel.products(GEOMETRY)
    for keep in ((0,), (1,), ()):
        for has_bias in (True, False):
            torch.manual_seed(0)
            w = _operand(torch.randn(12, 9), "weight", name, keep)
            bias = torch.randn(12) if has_bias else None
            output = kernel.prepack(w, bias)
            grad_input = kernel.prepack(transposed(w))
            for num_rows in (4, 1, 6):  # sequences end, so later steps have other sizes
                x = _operand(torch.randn(num_rows, 9) + 1, "act", name)
                e = _operand(torch.randn(num_rows, 12), "act", name)
                assert torch.equal(output(x), products.output(x, w, bias))
                expected = products.grad_input(e, w, torch.Size((num_rows, 9)))
                assert torch.equal(grad_input(e), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_float_input_or_error_meets_the_values_of_the_weight(name: str) -> None:
    torch.manual_seed(0)
    kernel, w = make_kernel(name), _operand(torch.randn(12, 9), "weight", name, (0,))
    x, e = Quantized(values=torch.randn(4, 9)), Quantized(values=torch.randn(4, 12))
    first, second, values = x.dequantize(), e.dequantize(), w.dequantize()
    torch.testing.assert_close(kernel.prepack(w)(x), first @ values.t())
    torch.testing.assert_close(kernel.prepack(transposed(w))(e), second @ values)
    products = kernel.products(GEOMETRY)
    torch.testing.assert_close(products.output(x, w, None), first @ values.t())
    torch.testing.assert_close(products.grad_input(e, w, first.shape), second @ values)
    torch.testing.assert_close(products.grad_weight(e, x, values.shape), second.t() @ first)
