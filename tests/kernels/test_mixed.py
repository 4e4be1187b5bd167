"""Kernels of three parts: their names, their errors, and which part forms which product."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from bitcycle.kernels import KERNELS, UNDECIDED, LinearGeometry, Mixed, make_kernel

from .operands import counted, numbers, quantized

GEOMETRY = LinearGeometry()


def test_the_name_of_a_mixed_kernel_makes_it_again() -> None:
    kernel = make_kernel("int8/bf16/dequantize")
    assert isinstance(kernel, Mixed)
    assert [part.name for part in kernel.parts] == ["int8", "bf16", "dequantize"]
    assert kernel.name == "int8/bf16/dequantize"
    assert make_kernel(kernel.name) == kernel
    assert hash(make_kernel(kernel.name)) == hash(kernel)
    assert kernel.takes_codes


def test_it_rounds_as_its_coarsest_part() -> None:
    assert make_kernel("int8/bf16/int8").rounding == KERNELS["bf16"].rounding
    assert make_kernel("int8/dequantize/int8").rounding == KERNELS["int8"].rounding


def test_three_times_the_same_is_that_kernel() -> None:
    assert make_kernel("int8/int8/int8") is KERNELS["int8"]


def test_auto_is_a_kernel_that_simulates_until_it_is_decided() -> None:
    assert make_kernel("auto") is UNDECIDED
    assert UNDECIDED.name == "auto"
    assert not UNDECIDED.takes_codes
    a, w = (quantized(numbers((4, 3), "centred", seed), (4, 4)) for seed in (0, 1))
    assert torch.equal(
        UNDECIDED.output(GEOMETRY, a, w, None), KERNELS["simulate"].output(GEOMETRY, a, w, None)
    )


def test_a_wrong_combination_tells_the_rule_and_the_choices() -> None:
    for name in (
        "int8/bf16",
        "int8/int8",
        "int8/bf16/int8/int8",
        "simulate/int8/int8",
        "int8/simulate/bf16",
    ):
        message = (
            rf"kernel '{name}' must name one kernel, or three that take codes, for output, "
            r"grad_input, grad_weight in this order; there are bf16, dequantize, int8"
        )
        with pytest.raises(ValueError, match=message):
            make_kernel(name)


def test_an_unknown_part_lists_the_known_kernels() -> None:
    for name in ("int8/fp16/int8", "int8/auto/int8", "int8//int8", "/"):
        with pytest.raises(ValueError, match=r"unknown kernel '.*'; known: bf16, dequantize, int8"):
            make_kernel(name)


def test_each_product_is_formed_by_its_own_part() -> None:
    kernel = make_kernel("int8/dequantize/bf16")
    a = quantized(numbers((4, 3), "centred", 0), (4, 4))
    w = quantized(numbers((5, 3), "centred", 1), (4, 4), torch.int8)
    e = quantized(numbers((4, 5), "centred", 2), (4, 4))
    with counted() as calls:
        output = kernel.output(GEOMETRY, a, w, torch.ones(5))
    assert calls == {"gemm": 1}
    assert torch.equal(output, KERNELS["int8"].output(GEOMETRY, a, w, torch.ones(5)))
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
        for name in ("int8", "bf16", "dequantize", "simulate", "int8/bf16/int8"):
            assert duplicate(make_kernel(name)).name == name
