"""The cost of schedules before a run: exact sums, the published ratios, every kind of model."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.cost import CONVENTIONS, count_macs
from bitcycle.cost.bitops import cost_of_plans
from bitcycle.cost.scheduled import find_plans
from bitcycle.models import build_model
from tests import toys


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


# spec/schedules.md: mean of (q^2 + 2qb) / (high^2 + 2 high b), N = 8, total 64,000
RATIOS = {
    ("ER", "ET-H"): (0.822, 0.863, 0.858, 0.912, 0.895, 0.963),
    ("LR", "LT"): (0.628, 0.696, 0.695, 0.792, 0.766, 0.894),
    ("CR", "CT"): (0.633, 0.700, 0.699, 0.793, 0.769, 0.894),
    ("ET-V",): (0.635, 0.701, 0.700, 0.794, 0.769, 0.894),
    ("RT-V",): (0.637, 0.703, 0.702, 0.794, 0.770, 0.894),
    ("RR", "RT-H"): (0.399, 0.497, 0.501, 0.644, 0.611, 0.806),
}


@pytest.mark.parametrize(("names", "ratios"), RATIOS.items())
def test_the_published_ratios_appear_when_everything_is_quantized_and_every_product_exists(
    names: tuple[str, ...], ratios: tuple[float, ...]
) -> None:
    model, x = quantized(4, 8), torch.ones(2, 4, requires_grad=True)
    for name in names:
        for (low, high), ratio in zip(
            [(3, 8), (3, 6), (4, 8), (4, 6), (5, 8), (5, 6)], ratios, strict=True
        ):
            forward = f"{name}:{low}-{high}:8"
            cost = bc.training_cost(model, x, forward=forward, backward=high, total_steps=64_000)
            assert round(cost.relative, 3) == ratio
            preview = bc.parse_schedule(forward).preview(64_000, backward=high)
            assert cost.relative == pytest.approx(preview.relative_cost, rel=1e-12)


@pytest.mark.parametrize(
    ("bits", "saving"),  # spec/cost.md, N = 32
    [("3-8/8", 36.67), ("3-6/6", 30.05), ("4-8/8", 30.11), ("4-6/6", 20.69), ("3-4/6", 14.84),
     ("5-8/8", 23.16), ("5-6/8", 10.23), ("4-6/8", 19.96)],
)  # fmt: skip
def test_the_published_savings_appear(bits: str, saving: float) -> None:
    forward, backward = bits.split("/")
    cost = bc.training_cost(
        quantized(4, 8), torch.ones(2, 4, requires_grad=True),
        forward=f"CR:{forward}:32", backward=int(backward), total_steps=64_000,
    )  # fmt: skip
    assert round(100 * cost.saving, 2) == saving


@pytest.mark.parametrize(
    ("name", "forward", "samples", "ratio"),  # spec/cost.md: operand traffic counted exactly
    [
        ("resnet74", "CR:3-8:32", 128, 0.841),
        ("resnet74", "CR:3-8:32", 1, 0.773),
        ("mobilenetv2", "CR:4-8:32", 128, 0.874),
        ("mobilenetv2", "CR:4-8:32", 1, 0.824),
    ],
)
def test_operand_traffic_depends_on_the_batch_as_specified(
    name: str, forward: str, samples: int, ratio: float
) -> None:
    model, inputs = on_meta(name, num_classes=100)
    cost = bc.training_cost(
        model, inputs, forward=forward, backward=8, total_steps=64_000, samples_per_step=samples
    )
    assert round(cost.relative_traffic, 3) == ratio


@pytest.mark.parametrize(
    ("forward", "backward", "over", "ratio"),  # spec/cost.md: 4q + 2b
    [
        (6, 6, "FW8/BW8", 0.75),
        ("CR:3-8:32", 8, None, 0.792),
        ("CR:3-6:32", 6, None, 0.833),
        ("CR:4-8:32", 8, None, 0.833),
        ("CR:4-6:32", 6, None, 0.889),
    ],
)
def test_uniform_traffic_is_4q_plus_2b_when_every_product_exists(
    forward: object, backward: int, over: str | None, ratio: float
) -> None:
    cost = bc.training_cost(
        quantized(4, 8, 2), torch.ones(2, 4, requires_grad=True), forward=forward,
        backward=backward, total_steps=64_000, baseline=over,
    )  # fmt: skip
    assert round(cost.relative_uniform_traffic, 3) == ratio
    if over is None and backward == 8:
        return
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
    cost = bc.training_cost(model, torch.ones(1, 4), weight=4, act=4, total_steps=1)
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


def test_a_static_schedule_reproduces_the_ratios_to_float32() -> None:
    model, x = quantized(4, 8), torch.ones(1, 4, requires_grad=True)
    costs = [
        bc.training_cost(model, x, forward=b, backward=b, total_steps=1, baseline="fp32")
        for b in (8, 6)
    ]
    assert [round(cost.relative, 5) for cost in costs] == [0.0625, 0.03516]  # spec/cost.md


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
    trace, plans = count_macs(model, x), find_plans(model, roles, 40)
    assert cost_of_plans(trace, plans, total_steps=40, samples_per_step=7) == before


def test_the_baseline_is_named_by_its_bits_when_it_is_one_for_all_layers() -> None:
    def baseline(forward: object) -> str:
        return bc.training_cost(
            quantized(4, 8, 2), torch.ones(1, 4), forward=forward, backward=8, total_steps=9
        ).baseline

    assert baseline("CR:3-8:1") == "static w8a8e8g8, the schedules' tops"
    assert baseline({"*": 4, "1": 6}) == "every role at its schedule's top"


def test_an_unknown_convention_is_an_error_before_anything_runs() -> None:
    known = "known: exact, followup, paper; did you mean 'exact'"
    with pytest.raises(ValueError, match=f"unknown cost convention 'exakt'; {known}"):
        bc.training_cost(None, None, forward=8, total_steps=1, convention="exakt")
    assert CONVENTIONS.names() == ["exact", "followup", "paper"]


@pytest.mark.parametrize("wrong", [{"total_steps": 0}, {"total_steps": 2.5}, {"total_steps": True}])
def test_a_wrong_number_of_steps_is_an_error(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="total_steps must be a whole number of at least 1"):
        bc.training_cost(quantized(4, 8), torch.ones(1, 4), forward=8, **wrong)


def test_wrong_samples_per_step_are_an_error() -> None:
    with pytest.raises(ValueError, match="samples_per_step must be a whole number"):
        bc.training_cost(
            quantized(4, 8), torch.ones(1, 4), forward=8, total_steps=1, samples_per_step=-1
        )


def test_arguments_that_a_scheduler_refuses_are_refused() -> None:
    model, x = quantized(4, 8), torch.ones(1, 4)
    with pytest.raises(ValueError, match="no role was given a schedule"):
        bc.training_cost(model, x, total_steps=1)
    with pytest.raises(ValueError, match="grad=8 has no effect"):
        bc.training_cost(model, x, forward=8, grad=8, total_steps=1)
    with pytest.raises(ValueError, match="matches no layer"):
        bc.training_cost(model, x, forward={"fc": 8}, total_steps=1)


def test_the_model_keeps_the_bits_it_has() -> None:
    model = quantized(4, 8)
    bc.set_precision(model, "FW5/BW7")
    bc.training_cost(model, torch.ones(1, 4), forward="CR:3-8:4", backward=8, total_steps=100)
    assert str(bc.get_precision(model)) == "w5a5e7g7"


def test_sixty_four_thousand_steps_of_164_layers_are_quick() -> None:
    model, inputs = on_meta("resnet164")
    start = time.perf_counter()
    cost = bc.training_cost(
        model, inputs, weight="CR:3-8:32", act="LT:4-8:30", error="CR:6-8:7", total_steps=64_000
    )
    assert time.perf_counter() - start < 10  # about 0.5 on an idle core, most of it the trace
    assert len(cost.layers) == 164 + 2  # and the two shortcuts with a convolution


def test_sums_stay_exact_beyond_what_floats_can_hold() -> None:
    model, x = quantized(3, 7), torch.ones(3, 3)
    cost = bc.training_cost(
        model, x, forward=7, backward=7, total_steps=3_333_333, samples_per_step=10**12 + 1
    )
    assert cost.bitops == 3_333_333 * (10**12 + 1) * 21 * 2 * 49


@pytest.mark.parametrize(("finer", "bits"), [(None, 32), (16, 16)])
def test_a_rule_with_two_errors_is_counted_with_both(finer: int | None, bits: int) -> None:
    model = bc.quantize_model(toys.linears(4, 8, 2), bc.quantizers.SBMFull(grad_weight_error=finer))
    cost = bc.training_cost(model, toys.randn(1, 4), forward=6, backward=8, total_steps=10)
    # 32 + 16 MACs a step; the first layer has no grad_input
    assert cost.by_matmul() == {
        "output": 10 * 48 * 6 * 6, "grad_input": 10 * 16 * 6 * 8, "grad_weight": 10 * 48 * 6 * bits,
    }  # fmt: skip
    meter = bc.CostMeter(model, toys.randn(1, 4))
    bc.set_precision(model, "FW6/BW8")
    for _ in range(10):
        meter.step()
    assert meter.by_matmul() == cost.by_matmul()
    paper = bc.training_cost(
        model, toys.randn(1, 4), forward=6, backward=8, total_steps=10, convention="paper"
    )
    assert paper.bitops == 10 * 48 * (6 * 6 + 2 * 6 * 8)  # as published: q^2 + 2 q b
