"""The published conventions, by their own check values, and the bits of operands."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.cost import count_macs
from bitcycle.cost.conventions import grad_weight_error_bits, operand_bits, present_bits
from bitcycle_lab.models import build_model
from tests.bitcycle import toys

# spec/cost.md: MACs and K in millions, of one sample; CIFAR nets with 100 classes
SIZES = {
    "resnet38": (83.286, 84.032),
    "resnet74": (168.221, 169.655),
    "resnet164": (380.558, 383.711),
    "mobilenetv2": (91.270, 94.720),
    "imagenet_resnet18": (1814.07, 1819.04),
    "imagenet_resnet50": (4089.18, 4111.41),
}


@pytest.mark.parametrize(("name", "sizes"), SIZES.items())
def test_k_is_the_macs_and_two_for_every_output_of_a_batch_norm(name, sizes) -> None:
    options = {} if name.startswith("imagenet") else {"num_classes": 100}
    with torch.device("meta"):
        model = build_model(name, **options)
    inputs = model.example_inputs(1, device="meta")
    digits = 2 if name.startswith("imagenet") else 3
    assert round(count_macs(model, inputs).macs["output"] / 1e6, digits) == sizes[0]
    cost = bc.training_cost(model, inputs, forward=1, backward=1, total_steps=1, convention="paper")
    assert cost.bitops % 3 == 0
    assert round(cost.bitops / 3 / 1e6, digits) == sizes[1]  # q = b = 1: K x 3


def test_every_layer_counts_at_the_scheduled_bits_converted_or_not() -> None:
    x = torch.ones(1, 2, 6, 6)
    costs = [
        bc.training_cost(
            bc.quantize_model(toys.net(), skip=skip), x, forward="CR:3-8:2", backward=8,
            total_steps=40, samples_per_step=7, convention="paper",
        )
        for skip in ([], ["conv", "head.2"])
    ]  # fmt: skip
    assert costs[0] == costs[1]
    # conv 4 x 16 x 18, norm 2 x 64, head 32 and 24
    q = bc.parse_schedule("CR:3-8:2").values(40)
    k = {"conv": 1152, "norm": 128, "head.0": 32, "head.2": 24}
    s = 7 * sum(bits * bits + 2 * bits * 8 for bits in q)
    assert list(costs[0].by_layer().items()) == [(name, k[name] * s) for name in k]


def test_a_float_model_counts_at_the_scheduled_bits() -> None:
    def cost(model: nn.Module) -> bc.cost.Cost:
        return bc.training_cost(
            model, torch.ones(1, 2, 6, 6), weight=3, act=4, backward="fp32", total_steps=5,
            convention="paper",
        )  # fmt: skip

    assert cost(toys.net()) == cost(bc.quantize_model(toys.net()))
    assert cost(toys.net()).baseline == "static w3a4, the schedules' tops"


def test_patterns_for_a_float_model_are_an_error() -> None:
    with pytest.raises(ValueError, match="forward="):
        bc.training_cost(
            toys.net(), torch.ones(1, 2, 6, 6), forward={"*": 8}, total_steps=1, convention="paper"
        )


def test_layers_with_bits_of_their_own_are_an_error_that_names_them() -> None:
    for convention in ("paper", "followup"):
        model = bc.quantize_model(toys.linears(4, 8, 2))
        with pytest.raises(ValueError, match="'0' and '1'"):
            bc.training_cost(
                model, torch.ones(1, 4), forward={"*": 4, "1": 6}, backward=8, total_steps=1,
                convention=convention,
            )  # fmt: skip


def test_the_graph_net_of_the_follow_up_costs_what_it_published() -> None:
    pytest.importorskip("torch_geometric")
    model = build_model("gcn")  # 128-512-512-40
    inputs = model.example_inputs(16)
    nodes = 169_343

    def cost(**roles: object) -> int:
        return bc.training_cost(
            model, inputs, **roles, total_steps=500, samples_per_step=nodes, convention="followup"
        ).bitops

    forward = 59_652_087_808  # spec/cost.md: F, layer norms at 4 per element, no aggregation
    assert cost(forward=8, backward=8) == forward * 500 * 192 // 1024 == 5_592_383_232_000
    assert round(cost(forward=8, backward=8) / 1e9, 1) == 5592.4
    assert cost(forward="fp32") == 3 * 500 * forward


def test_the_follow_up_counts_one_thousandth_of_the_bitops_where_there_are_no_norms() -> None:
    model = bc.quantize_model(toys.linears(4, 8, 2))
    paper, followup = (
        bc.training_cost(
            model, torch.ones(1, 4), forward=8, backward=8, total_steps=16, convention=convention
        )
        for convention in ("paper", "followup")
    )
    assert paper.bitops == 1024 * followup.bitops
    assert (paper.unit, followup.unit) == ("BitOPs", "MACs (32-bit)")
    assert paper.relative == followup.relative


def test_a_model_that_multiplies_nothing_costs_nothing() -> None:
    cost = bc.training_cost(
        nn.ReLU(), torch.ones(1, 4), forward=8, total_steps=1, convention="paper"
    )
    assert (cost.bitops, cost.saving) == (0, 0.0)


def test_float32_and_what_means_float32_count_as_32() -> None:
    for text, bits in (
        ("FW3/BW8", (3, 3, 8)),
        ("w2a4e6", (2, 4, 6)),
        ("w4", (4, 32, 32)),
        ("w23a24e31", (23, 32, 32)),  # from 24 on it is float32
        ("fp32", (32, 32, 32)),
    ):
        layer = bc.quantize_model(nn.Linear(2, 2))
        assert operand_bits(layer, bc.Precision.parse(text)) == bits
        bc.set_precision(layer, text)
        assert present_bits(layer) == bits


def test_a_float_layer_stays_at_32_whatever_it_is_asked() -> None:
    assert operand_bits(nn.Linear(2, 2), bc.Precision.parse("FW3/BW8")) == (32, 32, 32)
    assert present_bits(nn.Linear(2, 2)) == (32, 32, 32)


def test_the_error_in_grad_weight_may_have_bits_of_its_own() -> None:
    for finer, error, bits in ((None, 8, 32), (16, 8, 16), (16, 20, 20), (4, 8, 8), (16, 32, 32)):
        layer = bc.quantize_model(nn.Linear(2, 2), bc.quantizers.SBMFull(grad_weight_error=finer))
        assert grad_weight_error_bits(layer, (8, 8, error)) == bits


def test_most_rules_have_one_error() -> None:
    for layer in (nn.Linear(2, 2), bc.quantize_model(nn.Linear(2, 2))):
        assert grad_weight_error_bits(layer, (4, 4, 8)) == 8
