"""What a traced layer comes to at given bits."""

from __future__ import annotations

from bitcycle.cost import LayerMacs
from bitcycle.cost.product import FIXED, layer_products

LAYER = LayerMacs(
    "fc",
    "Linear",
    tuple(
        layer_products(96, act=12, second=32, error=24, has_grad_input=True, has_grad_weight=True)
    ),
)


def test_amounts_at_bits_follow_the_three_products() -> None:
    amounts = LAYER.at_bits((2, 3, 5))  # weight, act, error
    assert amounts.bitops == {"output": 96 * 6, "grad_input": 96 * 10, "grad_weight": 96 * 15}
    assert amounts.batch_reads == 12 * 3 + 24 * 5 + (24 * 5 + 12 * 3)
    assert amounts.weight_reads == 2 * 32 * 2
    assert amounts.uniform_reads == 2 * (2 + 3 + 5)


def test_an_error_of_grad_weight_s_own_counts_there_alone() -> None:
    amounts = LAYER.at_bits((2, 3, 5), 32)
    assert amounts.bitops == {"output": 96 * 6, "grad_input": 96 * 10, "grad_weight": 96 * 3 * 32}
    assert amounts.batch_reads == 12 * 3 + 24 * 5 + (24 * 32 + 12 * 3)
    assert amounts.uniform_reads == 2 * (2 + 3) + 5 + 32
    assert LAYER.at_bits((2, 3, 5), 5) is LAYER.at_bits((2, 3, 5))


def test_uniform_reads_are_4q_plus_2b() -> None:
    assert LAYER.at_bits((3, 3, 8)).uniform_reads == 4 * 3 + 2 * 8


def test_amounts_are_computed_once_per_bits() -> None:
    assert LAYER.at_bits((2, 3, 5)) is LAYER.at_bits((2, 3, 5))


def test_a_product_with_fixed_coefficients_is_an_aggregation() -> None:
    products = layer_products(
        10, act=5, second=7, error=5, has_grad_input=True, has_grad_weight=False, second_role=FIXED
    )
    row = LayerMacs("conv", "GCNConv", tuple(products))
    assert row.is_aggregation
    assert not LAYER.is_aggregation
    assert row.at_bits((2, 3, 5)).bitops["output"] == 10 * 3 * 32
