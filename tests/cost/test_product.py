"""Products, their sums, and how a counter is found for a type."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.candidates import find_candidates
from bitcycle.cost.product import (
    COUNTERS,
    Call,
    Product,
    UncountedError,
    add_up,
    find_counter,
    layer_products,
)
from bitcycle.nn.swap import LAYERS


def test_a_layer_has_three_products_of_equal_macs_and_its_own_operands() -> None:
    products = layer_products(
        96, act=12, second=32, error=24, has_grad_input=True, has_grad_weight=True
    )
    # spec: output = act x weight, grad_input = error x weight, grad_weight = error x act
    assert [(p.matmul, p.roles, p.macs, p.elements) for p in products] == [
        ("output", ("act", "weight"), 96, (12, 32)),
        ("grad_input", ("error", "weight"), 96, (24, 32)),
        ("grad_weight", ("error", "act"), 96, (24, 12)),
    ]


def test_gradients_that_nobody_needs_are_no_products() -> None:
    products = layer_products(
        96, act=12, second=32, error=24, has_grad_input=False, has_grad_weight=False
    )
    assert [p.matmul for p in products] == ["output"]


def test_the_bitops_of_a_product_are_macs_times_both_bits() -> None:
    p = Product(matmul="grad_input", roles=("error", "weight"), macs=10, elements=(5, 7))
    assert p.bitops({"weight": 3, "act": 4, "error": 8}) == 10 * 3 * 8
    assert p.traffic({"weight": 3, "act": 4, "error": 8}) == (5 * 8, 7 * 3)


def test_products_of_the_same_matmul_and_roles_add_up_in_the_order_of_the_matmuls() -> None:
    once = layer_products(6, act=2, second=3, error=4, has_grad_input=False, has_grad_weight=True)
    again = layer_products(
        60, act=20, second=30, error=40, has_grad_input=True, has_grad_weight=True
    )
    assert [(p.matmul, p.macs, p.elements) for p in add_up([*once, *again])] == [
        ("output", 66, (22, 33)),
        ("grad_input", 60, (40, 30)),
        ("grad_weight", 66, (44, 22)),
    ]


def test_every_type_that_can_be_converted_has_a_counter() -> None:
    assert [name for name in LAYERS if name not in COUNTERS] == []


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv2d, nn.ConvTranspose3d, bc.MatMul])
def test_a_converted_layer_has_the_counter_of_its_float_type(kind: type[nn.Module]) -> None:
    module = kind() if kind is bc.MatMul else kind(2, 2, *([1] if "Conv" in kind.__name__ else []))
    before = find_counter(type(module))
    bc.quantize_model(module)
    assert before is not None
    assert find_counter(type(module)) == before
    assert len(find_candidates(module)) == 1


def test_a_type_that_does_not_multiply_has_no_counter() -> None:
    assert find_counter(nn.ReLU) is None


def test_arguments_are_found_by_position_and_by_name() -> None:
    by_position = Call(nn.ReLU(), (1, 2), {}, None)
    by_name = Call(nn.ReLU(), (1,), {"hx": 2}, None)
    assert by_position.argument(1, "hx") == by_name.argument(1, "hx") == 2
    assert by_name.optional(2, "other") is None
    with pytest.raises(UncountedError, match="called without 'other'"):
        by_name.argument(2, "other")


def test_nothing_needs_a_gradient_when_the_output_has_no_graph() -> None:
    x = torch.ones(2, requires_grad=True)
    assert Call(None, (x,), {}, x * 2).needs(x)
    assert not Call(None, (x,), {}, (x * 2).detach()).needs(x)
    assert not Call(None, (x,), {}, x * 2).needs(None, torch.ones(2))
