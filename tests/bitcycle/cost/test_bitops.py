"""The cost of schedules before a run: exact sums, the published savings, and the table."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.cost import CONVENTIONS, Cost, LayerCost, count_macs
from bitcycle.cost.bitops import cost_of_schedules, find_layer_schedules
from bitcycle_lab.models import build_model
from tests.bitcycle import toys


def quantized(*widths: int) -> nn.Module:
    return bc.quantize_model(toys.linears(*widths))


def on_meta(name: str, **options: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    with torch.device("meta"):
        model = build_model(name, **options)
    return bc.quantize_model(model), model.example_inputs(1, device="meta")


def test_the_cost_of_three_layers_equals_the_hand_count() -> None:
    cost = bc.training_cost(
        quantized(4, 8, 6, 2), torch.ones(1, 4), forward="stages:3@0.25,8", backward=6,
        total_steps=8, samples_per_step=5,
    )  # fmt: skip
    # per sample 32, 48, 12 MACs; 2 steps x 5 samples at q = 3 and 6 x 5 at q = 8, b = 6
    qq, qb = 10 * 9 + 30 * 64, 10 * 18 + 30 * 48  # sums of q q and of q b
    assert cost.by_matmul() == {"output": 92 * qq, "grad_input": 60 * qb, "grad_weight": 92 * qb}
    assert cost.by_layer() == {
        "0": 32 * (qq + qb),
        "1": 48 * (qq + 2 * qb),
        "2": 12 * (qq + 2 * qb),
    }
    assert cost.bitops == sum(cost.by_layer().values()) == sum(cost.by_matmul().values())
    assert (cost.num_steps, cost.num_samples, cost.convention) == (8, 40, "exact")
    static = 40 * (92 * 64 + (60 + 92) * 48)
    assert cost.relative == cost.bitops / static
    assert cost.saving == 1 - cost.relative


@pytest.mark.parametrize("name", ["ER", "LT", "CR", "ET-V", "RT-V", "RR"])
def test_a_model_with_every_product_quantized_costs_what_the_preview_says(name: str) -> None:
    model, x = quantized(4, 8), torch.ones(2, 4, requires_grad=True)
    for low, high in ((3, 8), (4, 6)):
        forward = f"{name}:{low}-{high}:8"
        cost = bc.training_cost(model, x, forward=forward, backward=high, total_steps=4000)
        preview = bc.parse_schedule(forward).preview(4000, backward=high)
        assert cost.relative == pytest.approx(preview.relative_cost, rel=1e-12)


def test_the_published_savings_appear() -> None:
    for bits, saving in (
        ("3-8/8", 36.67),
        ("3-6/6", 30.05),
        ("4-8/8", 30.11),
        ("4-6/6", 20.69),
        ("3-4/6", 14.84),
        ("5-8/8", 23.16),
        ("5-6/8", 10.23),
        ("4-6/8", 19.96),
    ):
        forward, backward = bits.split("/")
        cost = bc.training_cost(
            quantized(4, 8), torch.ones(2, 4, requires_grad=True),
            forward=f"CR:{forward}:32", backward=int(backward), total_steps=64_000,
        )  # fmt: skip
        assert round(100 * cost.saving, 2) == saving


def test_operand_traffic_depends_on_the_batch_as_specified() -> None:
    for name, forward, samples, ratio in (
        ("resnet74", "CR:3-8:32", 128, 0.841),
        ("resnet74", "CR:3-8:32", 1, 0.773),
        ("mobilenetv2", "CR:4-8:32", 128, 0.874),
        ("mobilenetv2", "CR:4-8:32", 1, 0.824),
    ):
        model, inputs = on_meta(name, num_classes=100)
        cost = bc.training_cost(
            model, inputs, forward=forward, backward=8, total_steps=64_000, samples_per_step=samples
        )
        assert round(cost.relative_traffic, 3) == ratio


def test_uniform_traffic_is_4q_plus_2b_when_every_product_exists() -> None:
    for forward, backward, over, ratio in (
        (6, 6, "FW8/BW8", 0.75),
        ("CR:3-8:32", 8, None, 0.792),
        ("CR:3-6:32", 6, None, 0.833),
        ("CR:4-8:32", 8, None, 0.833),
        ("CR:4-6:32", 6, None, 0.889),
    ):
        cost = bc.training_cost(
            quantized(4, 8, 2), torch.ones(2, 4, requires_grad=True), forward=forward,
            backward=backward, total_steps=64_000, baseline=over,
        )  # fmt: skip
        assert round(cost.relative_uniform_traffic, 3) == ratio
        if over is None and backward == 8:
            continue
        (first, _), q = cost.layers, bc.parse_schedule(forward).values(64_000)
        assert first.uniform == sum(4 * bits + 2 * backward for bits in q)


def test_uniform_traffic_leaves_out_products_that_do_not_exist() -> None:
    cost = bc.training_cost(
        quantized(4, 8, 2), torch.ones(1, 4), weight=2, act=3, error=5, total_steps=7
    )
    # output a + w, grad_input e + w (not of the first layer), grad_weight e + a
    assert [layer.uniform for layer in cost.layers] == [7 * (5 + 8), 7 * (5 + 7 + 8)]


def test_traffic_reads_weights_once_a_step_and_activations_per_sample() -> None:
    cost = bc.training_cost(
        quantized(4, 8), torch.ones(2, 4), weight=2, act=3, error=5, total_steps=7,
        samples_per_step=10,
    )  # fmt: skip
    # a step: output reads 40 acts and 32 weights, grad_weight 80 errors and 40 acts
    assert cost.traffic == 7 * (40 * 3 + 32 * 2 + 80 * 5 + 40 * 3)


def test_the_traced_batch_does_not_matter_when_the_samples_per_step_are_given() -> None:
    model = quantized(4, 8, 2)
    one, seven = (
        bc.training_cost(
            model, torch.ones(n, 4), forward=4, backward=8, total_steps=9, samples_per_step=11
        )
        for n in (1, 7)
    )
    assert one == seven


def test_without_samples_per_step_a_step_is_the_traced_batch() -> None:
    cost = bc.training_cost(quantized(4, 8), torch.ones(3, 4), forward=4, backward=8, total_steps=2)
    assert cost.num_samples == 6
    assert cost.by_matmul()["output"] == 6 * 32 * 16


def test_layers_left_float_and_roles_not_scheduled_count_at_32() -> None:
    model = bc.quantize_model(toys.linears(4, 8, 2), skip=["1"])
    cost = bc.training_cost(model, torch.ones(1, 4), weight=4, act=4, backward=None, total_steps=1)
    assert cost.by_layer() == {"0": 32 * (16 + 4 * 32), "1": 16 * 3 * 1024}


def test_patterns_give_layers_their_own_bits() -> None:
    model = quantized(4, 8, 2)
    cost = bc.training_cost(
        model, torch.ones(1, 4), forward={"*": 4, "1": 6}, backward=8, total_steps=1
    )
    assert cost.by_layer() == {"0": 32 * (16 + 32), "1": 16 * (36 + 2 * 48)}


def test_a_float_model_costs_32_bits_and_a_schedule_for_it_is_warned_about() -> None:
    model, x = toys.linears(4, 8), torch.ones(1, 4)
    cost = bc.training_cost(model, x, forward="fp32", total_steps=10)
    assert (cost.bitops, cost.relative) == (10 * 32 * 2 * 1024, 1.0)
    for forward in ("CR:3-8:4", {"*": 8}):
        with pytest.warns(bc.BitcycleWarning, match="no quantized layer"):
            bc.training_cost(model, x, forward=forward, total_steps=10)


def test_the_baseline_can_be_any_precision() -> None:
    model, x = quantized(4, 8), torch.ones(1, 4, requires_grad=True)

    def relative(baseline: bc.Precision | str | None) -> float:
        return bc.training_cost(
            model, x, forward=4, backward=8, total_steps=3, baseline=baseline
        ).relative

    assert relative(None) == 1.0
    assert relative("FW8/BW8") == (16 + 64) / (3 * 64)
    assert relative(bc.Precision()) == (16 + 64) / (3 * 1024)  # spec: ratio to float32


def test_the_default_baseline_is_the_top_even_when_no_step_reaches_it() -> None:
    cost = bc.training_cost(
        quantized(4, 8), torch.ones(1, 4), forward="RR:3-8:8", backward=8, total_steps=80
    )
    before = bc.training_cost(
        quantized(4, 8), torch.ones(1, 4), forward=8, backward=8, total_steps=80
    )
    assert cost.baseline_layers == before.layers


def test_what_was_not_counted_is_in_the_cost_and_in_its_text() -> None:
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4), toys.Trilinear()))
    cost = bc.training_cost(model, torch.ones(3, 4), forward=8, backward=8, total_steps=1)
    assert cost.uncounted == ("1: _trilinear",)
    assert str(cost).endswith("not counted:\n  1: _trilinear")
    assert "convention 'exact'" in str(cost)


def test_a_product_that_no_layer_owns_stays_at_32_bits() -> None:
    class Gram(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x.T

    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 4), Gram()))
    cost = bc.training_cost(model, torch.ones(3, 4), forward=8, backward=8, total_steps=1)
    assert cost.by_layer() == {"0": 48 * 2 * 64, "1": 36 * 3 * 1024}


def test_a_traced_model_is_priced_without_running_it_again() -> None:
    model, x = quantized(4, 8, 2), torch.ones(3, 4)
    roles = {"forward": "CR:3-8:2", "backward": 8}
    before = bc.training_cost(model, x, **roles, total_steps=40, samples_per_step=7)
    trace, schedules = count_macs(model, x), find_layer_schedules(model, roles, 40)
    assert cost_of_schedules(trace, schedules, total_steps=40, samples_per_step=7) == before


def test_the_baseline_is_named_by_its_bits_when_it_is_one_for_all_layers() -> None:
    def baseline(forward: object, **more: str) -> str:
        return bc.training_cost(
            quantized(4, 8, 2), torch.ones(1, 4), forward=forward, backward=8, total_steps=9, **more
        ).baseline

    assert baseline("CR:3-8:1") == "static w8a8e8, the schedules' tops"
    assert baseline({"*": 4, "1": 6}) == "every role at its schedule's top"
    assert baseline(4, baseline="FW6/BW8") == "static w6a6e8"  # sbm has no rule for grad


def test_an_unknown_convention_is_an_error_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="did you mean 'exact'"):
        bc.training_cost(None, None, forward=8, total_steps=1, convention="exakt")
    assert CONVENTIONS.names() == ["exact", "followup", "paper"]


def test_a_wrong_number_of_steps_is_an_error() -> None:
    for wrong in ({"total_steps": 0}, {"total_steps": 2.5}, {"total_steps": True}):
        with pytest.raises(ValueError, match="total_steps"):
            bc.training_cost(quantized(4, 8), torch.ones(1, 4), forward=8, **wrong)


def test_wrong_samples_per_step_are_an_error() -> None:
    with pytest.raises(ValueError, match="samples_per_step"):
        bc.training_cost(
            quantized(4, 8), torch.ones(1, 4), forward=8, total_steps=1, samples_per_step=-1
        )


def test_arguments_that_a_scheduler_refuses_are_refused() -> None:
    model, x = quantized(4, 8), torch.ones(1, 4)
    with pytest.raises(ValueError, match="no role has a schedule"):
        bc.training_cost(model, x, total_steps=1)
    with pytest.raises(ValueError, match="grad=8"):
        bc.training_cost(model, x, forward=8, grad=8, total_steps=1)
    with pytest.raises(ValueError, match="matches no layer"):
        bc.training_cost(model, x, forward={"fc": 8}, total_steps=1)


def test_the_model_keeps_the_bits_it_has() -> None:
    model = quantized(4, 8)
    bc.set_precision(model, "FW5/BW7")
    bc.training_cost(model, torch.ones(1, 4), forward="CR:3-8:4", backward=8, total_steps=100)
    assert str(bc.get_precision(model)) == "w5a5e7"


def test_sums_stay_exact_beyond_what_floats_can_hold() -> None:
    model, x = quantized(3, 7), torch.ones(3, 3)
    cost = bc.training_cost(
        model, x, forward=7, backward=7, total_steps=33_333, samples_per_step=10**14 + 1
    )
    assert cost.bitops == 33_333 * (10**14 + 1) * 21 * 2 * 49


def test_a_rule_with_two_errors_is_counted_with_both() -> None:
    for finer, bits in ((None, 32), (16, 16)):
        model = bc.quantize_model(
            toys.linears(4, 8, 2), bc.quantizers.SBMFull(grad_weight_error=finer)
        )
        cost = bc.training_cost(model, toys.randn(1, 4), forward=6, backward=8, total_steps=10)
        # 32 + 16 MACs a step; the first layer has no grad_input
        assert cost.by_matmul() == {
            "output": 10 * 48 * 6 * 6,
            "grad_input": 10 * 16 * 6 * 8,
            "grad_weight": 10 * 48 * 6 * bits,
        }
        meter = bc.CostMeter(model, toys.randn(1, 4))
        bc.set_precision(model, "FW6/BW8")
        for _ in range(10):
            meter.step()
        assert meter.by_matmul() == cost.by_matmul()
        paper = bc.training_cost(
            model, toys.randn(1, 4), forward=6, backward=8, total_steps=10, convention="paper"
        )
        assert paper.bitops == 10 * 48 * (6 * 6 + 2 * 6 * 8)  # as published: q^2 + 2 q b


def test_layers_have_their_scheduled_bits_and_the_rest_is_float32() -> None:
    model = bc.quantize_model(toys.linears(4, 8, 2), skip=["1"])
    schedules = find_layer_schedules(model, dict(forward="stages:3@0.25,8", backward=6), 8)
    usages, tops = schedules.usages(list(model), 8, 5)
    assert usages == [{(3, 3, 6): (2, 10), (8, 8, 6): (6, 30)}, {(32, 32, 32): (8, 40)}]
    assert tops == [(8, 8, 6), (32, 32, 32)]
    assert list(map(str, schedules.tops)) == ["w8a8e6"]


def test_layers_can_have_different_tops() -> None:
    model = bc.quantize_model(toys.linears(4, 8, 2))
    schedules = find_layer_schedules(model, dict(forward={"*": 8, "1": 6}), 8)
    assert list(map(str, schedules.tops)) == ["w8a8e8", "w6a6e8"]


def test_where_conversion_is_not_needed_roles_inherit_as_in_a_scheduler() -> None:
    schedules = find_layer_schedules(
        nn.Linear(4, 2), dict(forward=6, act=4), 8, needs_conversion=False
    )
    usages, tops = schedules.usages([nn.Linear(4, 2)], 8, 1)
    assert usages == [{(6, 4, 8): (8, 8)}]  # backward is 8 by default
    assert tops == [(6, 4, 8)]


def test_a_float_model_is_warned_about_only_when_bits_are_lowered() -> None:
    find_layer_schedules(nn.Linear(4, 2), dict(forward="fp32"), 8)
    with pytest.warns(bc.BitcycleWarning, match="no quantized layer"):
        find_layer_schedules(nn.Linear(4, 2), dict(error=8), 8)


def test_bits_of_a_role_without_a_rule_stay_at_32() -> None:
    model = bc.quantize_model(nn.Linear(4, 2))
    schedules = find_layer_schedules(model, dict(forward=24, backward=8), 3)
    assert schedules.usages([model], 3, 1)[0] == [{(32, 32, 8): (3, 3)}]


# -- Cost -----------------------------------------------------------------------------------------


def layer(name: str, scale: int) -> LayerCost:
    return LayerCost(
        name=name,
        kind="Linear",
        output=scale * 10**9,
        grad_input=scale * 2 * 10**9,
        grad_weight=scale * 3 * 10**9,
        traffic=scale * 8 * 10**9,
        uniform=scale * 40,
    )


COST = Cost(
    convention="exact",
    layers=(layer("a", 1), layer("b", 2)),
    baseline_layers=(layer("a", 4), layer("b", 8)),
    baseline="static w8a8e8",
    num_steps=1000,
    num_samples=128_000,
    uncounted=("attention: bmm x2",),
)
EMPTY = dataclasses.replace(COST, layers=(), baseline_layers=())


def test_totals_are_sums_over_layers_and_over_matmuls() -> None:
    assert COST.by_layer() == {"a": 6 * 10**9, "b": 12 * 10**9}
    assert COST.by_matmul() == {
        "output": 3 * 10**9,
        "grad_input": 6 * 10**9,
        "grad_weight": 9 * 10**9,
    }
    assert COST.bitops == 18 * 10**9
    assert COST.traffic == 24 * 10**9
    assert isinstance(COST.bitops, int)


def test_relative_and_saving_compare_with_the_baseline() -> None:
    assert (COST.relative, COST.saving, COST.relative_traffic) == (0.25, 0.75, 0.25)
    assert (COST.uniform_traffic, COST.relative_uniform_traffic) == (120, 0.25)


def test_nothing_compared_with_nothing_is_no_saving() -> None:
    assert (EMPTY.bitops, EMPTY.relative, EMPTY.saving) == (0, 1.0, 0.0)


def test_the_table_names_the_convention_and_what_was_not_counted() -> None:
    assert (
        str(COST)
        == """\
cost by convention 'exact': 1,000 steps, 128,000 samples
relative to static w8a8e8
matmul       GBitOPs   share  relative
-----------  -------  ------  --------
output             3   16.7%    0.2500
grad_input         6   33.3%    0.2500
grad_weight        9   50.0%    0.2500
all               18  100.0%    0.2500
saving 75.00%
operand traffic 3 GB, 0.2500 of the baseline's (a model, not a measurement);
  0.2500 if all operands were equally large
not counted:
  attention: bmm x2"""
    )


def test_the_layer_table_has_a_row_per_layer() -> None:
    assert COST.layer_table().splitlines()[4:7] == [
        "a            6   33.3%    0.2500",
        "b           12   66.7%    0.2500",
        "all         18  100.0%    0.2500",
    ]


def test_a_stage_is_the_shortest_prefix_that_no_half_of_the_layers_shares() -> None:
    for names, stages in (
        (["conv1", "layer1.0.conv1", "layer1.0.conv2", "fc"], ["conv1", "layer1", "fc"]),
        (
            ["layers.0.q", "layers.0.k", "layers.1.q", "layers.1.k", "decoder"],
            ["layers.0", "layers.1", "decoder"],
        ),
        (["0", "1", "2"], ["0", "1", "2"]),
        (["net.body.conv"], ["net.body.conv"]),
        ([""], [""]),
    ):
        layers = tuple(layer(name, 1) for name in names)
        cost = dataclasses.replace(COST, layers=layers, baseline_layers=layers)
        assert list(cost.by_stage()) == stages
        assert sum(cost.by_stage().values()) == cost.bitops


def test_the_stage_table_adds_up_the_layers_of_a_stage() -> None:
    layers = tuple(layer(name, 1) for name in ("a.x", "a.y", "b", "c"))
    cost = dataclasses.replace(COST, layers=layers, baseline_layers=layers)
    assert cost.stage_table().splitlines()[4:6] == [
        "a           12   50.0%    1.0000",
        "b            6   25.0%    1.0000",
    ]


def test_large_costs_are_written_in_powers_of_ten_all_alike() -> None:
    layers = (layer("a", 10**6), layer("b", 1))
    table = dataclasses.replace(COST, layers=layers, baseline_layers=layers).layer_table()
    assert "6.000e+06" in table
    assert "6.000e+00" in table


def test_the_unit_of_the_convention_is_in_the_table() -> None:
    assert "GMACs" in str(dataclasses.replace(COST, unit="MACs"))


def test_a_dict_of_json_types_has_every_number() -> None:
    data = COST.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["convention"], data["bitops"], data["saving"]) == ("exact", 18 * 10**9, 0.75)
    assert data["by_layer"] == {"a": 6 * 10**9, "b": 12 * 10**9}
    assert data["uncounted"] == ["attention: bmm x2"]


def test_a_cost_is_frozen_and_equal_by_its_numbers() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        COST.num_steps = 1
    assert dataclasses.replace(COST, baseline="in other words") == COST
    assert dataclasses.replace(COST, num_steps=1) != COST


def test_the_sizes_of_an_epochs_batches_count_as_the_meter_counts_them() -> None:
    model, roles = bc.quantize_model(nn.Linear(4, 8)), {"forward": "CR:3-8:2", "backward": 8}
    x = torch.ones(2, 4)
    cost = bc.training_cost(model, x, **roles, total_steps=20, samples_per_step=[5, 5, 2])
    assert (cost.num_steps, cost.num_samples) == (20, 6 * 12 + 10)
    meter = bc.CostMeter(model, x)
    bits = bc.PrecisionScheduler(model, **roles, total_steps=20)
    for step in range(20):
        meter.step([5, 5, 2][step % 3])
        bits.step()
    assert meter.bitops == cost.bitops
    for sizes in ([], [5, 0], 0, [2.5]):
        with pytest.raises(ValueError, match="samples_per_step"):
            bc.training_cost(model, x, **roles, total_steps=20, samples_per_step=sizes)
