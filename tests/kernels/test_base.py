"""The kernel boundary: names, triples of names, and what each kernel promises."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from bitcycle.kernels import KERNELS, LinearGeometry, make_kernel
from bitcycle.kernels.base import MATMULS
from bitcycle.kernels.geometry import transposed
from bitcycle.quantizers import SBM
from bitcycle.quantizers.base import Quantized

from .operands import counted, numbers, quantized

GEOMETRY = LinearGeometry()
NAMES = [*KERNELS.names(), "native/bf16/native"]


def test_every_kernel_knows_its_name() -> None:
    for name, kernel in KERNELS.items():
        assert kernel.name == name
        assert make_kernel(name) is kernel
        assert [part.name for part in kernel.parts] == [name] * 3


def test_there_are_four() -> None:
    assert set(KERNELS) == {"simulate", "dequantize", "bf16", "native"}


def test_int8_is_the_earlier_name_of_native() -> None:
    assert make_kernel("int8") is KERNELS["native"]
    assert make_kernel("int8/bf16/int8") == make_kernel("native/bf16/native")
    assert make_kernel("int8/int8/native") is KERNELS["native"]


def test_the_products_have_the_names_of_a_kernel_s_methods() -> None:
    assert MATMULS == ("output", "grad_input", "grad_weight")
    for _, kernel in KERNELS.items():
        assert all(callable(getattr(kernel, product)) for product in MATMULS)


def test_only_simulate_takes_values() -> None:
    assert [name for name in KERNELS if not KERNELS[name].takes_codes] == ["simulate"]


def test_a_kernel_states_how_far_it_may_be_off() -> None:
    for name, rounding in (
        ("simulate", 2**-18),
        ("dequantize", 2**-18),
        ("native", 2**-16),
        ("bf16", 2**-7),
        ("native/bf16/native", 2**-7),
        ("native/dequantize/native", 2**-16),
    ):
        assert make_kernel(name).rounding == rounding


def test_an_unknown_kernel_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown kernel 'simulat'; did you mean 'simulate'"):
        make_kernel("simulat")
    for name in ("native/fp16/native", "native//native", "/"):
        with pytest.raises(ValueError, match=r"unknown kernel '.*'; .*known: "):
            make_kernel(name)


def test_a_wrong_combination_tells_the_rule_and_the_choices() -> None:
    for name in (
        "native/bf16",
        "native/bf16/native/native",
        "simulate/native/native",
        "native/simulate/bf16",
        "native/auto/native",
    ):
        message = (
            rf"kernel '{name}' must name one kernel, or three that take codes, for output, "
            r"grad_input, grad_weight in this order; there are bf16, dequantize, native"
        )
        with pytest.raises(ValueError, match=message):
            make_kernel(name)


def test_the_name_of_a_triple_makes_it_again() -> None:
    kernel = make_kernel("native/bf16/dequantize")
    assert [part.name for part in kernel.parts] == ["native", "bf16", "dequantize"]
    assert kernel.name == "native/bf16/dequantize"
    assert make_kernel(kernel.name) == kernel
    assert hash(make_kernel(kernel.name)) == hash(kernel)
    assert kernel.takes_codes


def test_auto_is_a_kernel_that_simulates_until_it_is_decided() -> None:
    auto = make_kernel("auto")
    assert auto.is_undecided
    assert not make_kernel("simulate").is_undecided
    assert not auto.takes_codes
    a, w = (quantized(numbers((4, 3), "centred", seed), (4, 4)) for seed in (0, 1))
    simulated = KERNELS["simulate"].output(GEOMETRY, a, w, None)
    assert torch.equal(auto.output(GEOMETRY, a, w, None), simulated)


def test_each_product_is_formed_by_its_own_part() -> None:
    kernel = make_kernel("native/dequantize/bf16")
    a = quantized(numbers((4, 3), "centred", 0), (4, 4))
    w = quantized(numbers((5, 3), "centred", 1), (4, 4))
    e = quantized(numbers((4, 5), "centred", 2), (4, 4))
    with counted() as calls:
        output = kernel.output(GEOMETRY, a, w, torch.ones(5))
    assert calls == {"gemm": 1}
    assert torch.equal(output, KERNELS["native"].output(GEOMETRY, a, w, torch.ones(5)))
    with counted() as calls:
        grad_input = kernel.grad_input(GEOMETRY, e, w, torch.Size((4, 3)))
        grad_weight = kernel.grad_weight(GEOMETRY, e, a, torch.Size((5, 3)))
    assert not calls
    assert torch.equal(grad_input, e.dequantize() @ w.dequantize())
    bf16 = KERNELS["bf16"].grad_weight(GEOMETRY, e, a, torch.Size((5, 3)))
    assert torch.equal(grad_weight, bf16)
    assert not torch.equal(grad_weight, e.dequantize().t() @ a.dequantize())


def test_a_kernel_can_be_copied_with_its_model() -> None:
    for duplicate in (copy.deepcopy, lambda k: pickle.loads(pickle.dumps(k))):
        for name in (*NAMES, "auto"):
            assert duplicate(make_kernel(name)) == make_kernel(name)


# -- every kernel, on the cases at the edges ------------------------------------------------------


@pytest.mark.parametrize("kernel", NAMES)
def test_nothing_to_multiply_gives_nothing_but_the_bias(kernel: str) -> None:
    for m, k, n in ((0, 8, 4), (3, 8, 0), (3, 0, 4)):
        a, e = quantized(torch.zeros(m, k), (8, 8)), quantized(torch.zeros(m, n), (8, 8))
        w = quantized(torch.zeros(n, k), (8, 8))
        output = make_kernel(kernel).output(GEOMETRY, a, w, torch.full((n,), 2.0))
        assert output.shape == (m, n)
        assert bool((output == 2).all())
        grad_input = make_kernel(kernel).grad_input(GEOMETRY, e, w, torch.Size((m, k)))
        grad_weight = make_kernel(kernel).grad_weight(GEOMETRY, e, a, torch.Size((n, k)))
        assert (grad_input.shape, grad_weight.shape) == ((m, k), (n, k))
        assert not grad_input.any()
        assert not grad_weight.any()


@pytest.mark.parametrize("kernel", NAMES)
def test_constant_operands_multiply_exactly(kernel: str) -> None:
    for value in (0.7, 0.0, -3.0):
        # a constant has a step of 0 and codes that weigh nothing: its value is its offset
        a = quantized(torch.full((2, 4), value), (4, 4))
        w = quantized(torch.full((3, 4), -2.0), (4, 4), keep=(0,))
        output = make_kernel(kernel).output(GEOMETRY, a, w, None)
        assert output.flatten().tolist() == pytest.approx([-8 * value] * 6, rel=1e-7)


@pytest.mark.parametrize("kernel", NAMES)
def test_one_nan_in_an_operand_s_range_makes_the_products_nan(kernel: str) -> None:
    x = numbers((6, 5), "centred", 0)
    x[2, 3] = float("nan")
    w = quantized(numbers((3, 5), "above", 1), (4, 4), keep=(0,))
    bad = quantized(x, (4, 4))
    assert make_kernel(kernel).output(GEOMETRY, bad, w, None).isnan().all()
    good = quantized(numbers((4, 6), "centred", 2), (4, 4))
    for keep in ((), (0,)):
        weight = quantized(x, (4, 4), keep=keep)
        grad = make_kernel(kernel).grad_input(GEOMETRY, good, weight, torch.Size((4, 5)))
        assert grad.isnan().all()


def _operand(x: Tensor, role: str, kernel: str, keep: tuple[int, ...] = ()) -> Quantized:
    rules = SBM()
    carrier = torch.uint8 if make_kernel(kernel).takes_codes else None
    within = rules.range_of(role, x, keep)
    return rules.encode(role, x, torch.tensor(127), within, carrier=carrier)


@pytest.mark.parametrize("name", NAMES)
def test_a_prepacked_weight_gives_the_products_of_the_kernel_itself(name: str) -> None:
    kernel = make_kernel(name)
    for keep in ((0,), (1,), ()):
        for has_bias in (True, False):
            torch.manual_seed(0)
            w = _operand(torch.randn(12, 9), "weight", name, keep)
            bias = torch.randn(12) if has_bias else None
            output = kernel.parts[0].prepack(w, bias)
            grad_input = kernel.parts[1].prepack(transposed(w))
            for num_rows in (4, 1, 6):  # sequences end, so later steps have other sizes
                x = _operand(torch.randn(num_rows, 9) + 1, "act", name)
                e = _operand(torch.randn(num_rows, 12), "act", name)
                assert torch.equal(output(x), kernel.output(GEOMETRY, x, w, bias))
                expected = kernel.grad_input(GEOMETRY, e, w, torch.Size((num_rows, 9)))
                assert torch.equal(grad_input(e), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_float_input_or_error_meets_the_values_of_the_weight(name: str) -> None:
    torch.manual_seed(0)
    kernel, w = make_kernel(name), _operand(torch.randn(12, 9), "weight", name, (0,))
    x, e = Quantized(values=torch.randn(4, 9)), Quantized(values=torch.randn(4, 12))
    first, second, values = x.dequantize(), e.dequantize(), w.dequantize()
    torch.testing.assert_close(kernel.parts[0].prepack(w)(x), first @ values.t())
    torch.testing.assert_close(kernel.parts[1].prepack(transposed(w))(e), second @ values)
    torch.testing.assert_close(kernel.output(GEOMETRY, x, w, None), first @ values.t())
    torch.testing.assert_close(kernel.grad_input(GEOMETRY, e, w, first.shape), second @ values)
    grad = kernel.grad_weight(GEOMETRY, e, x, values.shape)
    torch.testing.assert_close(grad, second.t() @ first)
