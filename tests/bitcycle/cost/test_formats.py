"""Formats in a cost: elements in BitOPs, published throughput next to them, and meters."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.cost import CostMeter, Throughput
from bitcycle.cost.conventions import LayerCost, element_bits, operand_bits
from bitcycle.cost.throughput import CONVENTION, published_rate
from bitcycle.formats.catalogue import FORMATS
from bitcycle.quantizers import NVFP4

X = torch.ones(1, 4)
MXFP4, MXFP8, BF16 = (FORMATS[name] for name in ("mxfp4", "mxfp8", "bf16"))


def model(**options):
    """MACs: output 48, grad_input 16 (of the second layer), grad_weight 48."""
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return bc.quantize_model(layers, "mx", **options)


def cost(forward, backward, convention="exact", **options):
    return bc.training_cost(
        model(**options), X, forward=forward, backward=backward, total_steps=100,
        convention=convention,
    )  # fmt: skip


# -- published rates ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "rates"),
    [
        ("bf16", "bf16", (1, 1)), ("fp16", "bf16", (1, 1)), ("fp8", "e5m2", (2, 2)),
        ("mxfp8", "mxfp8", (2, 2)), ("mxfp6", "mxfp6_e3m2", (2, 2)), ("mxfp4", "mxfp4", (4, 6)),
        ("nvfp4", "nvfp4", (4, 6)),
        ("nvfp4", "bf16", (1, 1)), ("mxfp8", "mxfp4", (2, 2)),  # the slower one's
        ("mxint8", "mxint8", (None, None)),
    ],
)  # fmt: skip
def test_a_product_has_the_published_rate_of_its_slower_format(first, second, rates):
    found = [published_rate(FORMATS[first], FORMATS[second], name) for name in ("GB200", "GB300")]
    assert tuple(found) == rates


def test_integers_and_float32_have_no_published_rate():
    assert published_rate(8, 8, "GB200") is None
    assert published_rate(BF16, 32, "GB200") is None


def test_a_speedup_is_that_of_the_products_with_a_rate():
    macs = {("output", MXFP4, MXFP4): 600, ("grad_input", MXFP4, BF16): 100, ("output", 8, 8): 300}
    layer = LayerCost(
        name="a", kind="Linear", output=1, grad_input=1, grad_weight=1, traffic=1, macs=macs
    )
    found = Throughput.of([layer])
    # 600 / 4 + 100 and 600 / 6 + 100
    assert found.speedup == {"GB200": 700 / 250, "GB300": 700 / 200}
    assert found.counted == 0.7
    assert Throughput.of([layer], "grad_input").speedup["GB300"] == 1
    assert Throughput.of([layer], "grad_weight") is None


def test_elements_count():
    assert element_bits((MXFP4, BF16, 32)) == (4, 16, 32)


# -- the cost of a run ----------------------------------------------------------------------------


def test_bitops_count_the_bits_of_elements():
    assert cost("mxfp4", "mxfp4").bitops == 100 * 112 * 4 * 4
    assert cost("mxfp8", "mxfp8").bitops == 100 * 112 * 8 * 8
    assert cost("bf16", "bf16").bitops == 100 * 112 * 16 * 16
    found = cost("stages:mxfp4@0.5,bf16", "mxfp4")
    assert found.by_matmul() == {
        "output": 48 * 50 * (16 + 256),
        "grad_input": 16 * 50 * (16 + 64),
        "grad_weight": 48 * 50 * (16 + 64),
    }
    # the static upper bound: forward bf16, errors mxfp4
    assert found.relative == 908_800 / (100 * (48 * 256 + 64 * 64))
    assert found.baseline == "static w=bf16,a=bf16,e=mxfp4, the schedules' tops"
    assert cost("mxfp4", "mxfp8", convention="paper").bitops == 100 * 48 * (16 + 32 + 32)


def test_the_published_throughput_is_named_and_counts_what_it_can():
    found = cost("stages:mxfp4@0.5,bf16", "mxfp4")
    # half of the steps at 4 or 6; bf16 x bf16 and bf16 x mxfp4 at 1
    assert found.published_throughput.speedup == {
        "GB200": pytest.approx(1.6), "GB300": pytest.approx(12 / 7),
    }  # fmt: skip
    assert found.published_throughput.counted == 1
    text = str(found)
    assert "GB200  GB300" in text
    assert CONVENTION == "published throughput, bf16 = 1: NVIDIA Blackwell, not measured here"
    assert f"GB200, GB300: {CONVENTION};" in text
    assert text.splitlines()[-7].split()[-2:] == ["1.60", "1.71"]
    assert "1.60" in found.layer_table()
    assert found.to_dict()["published_throughput"]["convention"] == CONVENTION
    json.dumps(found.to_dict())


def test_float_layers_and_integers_are_left_out_of_the_throughput_and_it_says_so():
    found = cost("mxfp4", "mxfp4", skip=["2"])
    assert found.published_throughput.counted == 64 / 112
    assert found.published_throughput.speedup["GB200"] == 4
    assert "42.9%" in str(found)  # 48 / 112
    row = next(line for line in found.layer_table().splitlines() if line.startswith("2 "))
    assert row.split()[-2:] == ["-", "-"]
    none = cost("mxfp4", 8, skip=["0"])  # output alone has a rate
    assert none.published_throughput.counted == 16 / 112
    assert cost("mxint8", "mxint8").published_throughput is None


def test_a_run_of_integers_has_no_such_column():
    found = cost(8, 8)
    assert found.published_throughput is None
    assert "GB200" not in str(found)
    assert "published_throughput" not in found.to_dict()


# -- the meter ------------------------------------------------------------------------------------


def test_a_meter_counts_what_was_planned_and_writes_formats_as_names():
    net = model()
    bits = bc.PrecisionScheduler(
        net, forward="stages:mxfp4@0.5,bf16", backward="mxfp8", total_steps=4
    )
    meter = CostMeter(net, X)
    for _ in range(4):
        meter.step()
        bits.step()
    planned = bc.training_cost(
        net, X, forward="stages:mxfp4@0.5,bf16", backward="mxfp8", total_steps=4
    )
    assert meter.cost().layers == planned.layers
    assert meter.cost().relative == planned.relative
    assert meter.cost().published_throughput == planned.published_throughput
    state = json.loads(json.dumps(meter.state_dict()))
    assert state["layers"]["0"] == [
        ["mxfp4", "mxfp4", "mxfp8", 2, 2], ["bf16", "bf16", "mxfp8", 2, 2],
    ]  # fmt: skip
    other = CostMeter(net, X)
    other.load_state_dict(state)
    assert other.cost() == meter.cost()
    assert other.cost().published_throughput == meter.cost().published_throughput


def test_a_damaged_meter_is_an_error():
    meter = CostMeter(model(), X)
    meter.step()
    state = meter.state_dict()
    for row in (["mxfp5", 8, 8, 1, 1], [8, 8, 8, "bf16", 1]):
        state["layers"]["0"] = [row]
        with pytest.raises(ValueError, match="bf16|mxfp5"):
            meter.load_state_dict(state)


def test_attention_at_nvfp4_counts_as_the_bf16_that_it_is():
    model = bc.quantize_model(nn.ModuleList([bc.MatMul(), nn.Linear(2, 2)]), "nvfp4")
    nvfp4, bf16 = FORMATS["nvfp4"], FORMATS["bf16"]
    precision = bc.Precision.parse("FWnvfp4/BWnvfp4")
    assert operand_bits(model[0], precision) == (bf16, bf16, bf16)
    assert operand_bits(model[1], precision) == (nvfp4, nvfp4, nvfp4)


class SelfProduct(nn.Module):
    """x W (x W)^T: a product with a weight, and one of two activations."""

    def __init__(self):
        super().__init__()
        self.project, self.scores = nn.Linear(4, 4), bc.MatMul()

    def forward(self, x):
        y = self.project(x)
        return self.scores(y, y.transpose(-1, -2))


def test_a_published_convention_refuses_attention_that_is_bf16_where_the_model_is_nvfp4():
    def bitops(quantizer, forward="nvfp4", convention="paper"):
        model = bc.quantize_model(SelfProduct(), quantizer)
        return bc.training_cost(
            model, torch.ones(1, 3, 4), forward=forward, backward="nvfp4", total_steps=10,
            convention=convention,
        ).bitops  # fmt: skip

    for forward in ("nvfp4", "stages:nvfp4@0.5,bf16"):
        with pytest.raises(ValueError, match="'project' and 'scores'"):
            bitops("nvfp4", forward)
    with pytest.raises(ValueError, match="'project' and 'scores'"):
        bitops(NVFP4(attention="nvfp4"), {"*": "nvfp4", "scores": "bf16"})
    assert bitops("nvfp4", convention="exact") > 0
    assert bitops(NVFP4(attention="nvfp4")) > 0


# -- backward operands ----------------------------------------------------------------------------

OWN = {"forward": "stages:mxfp4@0.5,bf16", "backward": "mxfp4", "total_steps": 100}


@pytest.mark.parametrize(
    ("operands", "grad_input", "grad_weight"),
    [
        # bf16 weights and activations for half of the steps: (4 + 16) / 2 x 4
        ("forward", 16 * 40, 48 * 40),
        ("backward", 16 * 16, 48 * 16),
    ],
)
def test_each_matmul_counts_the_bits_that_its_operands_have(operands, grad_input, grad_weight):
    found = bc.training_cost(model(), X, **OWN, backward_operands=operands)
    assert found.by_matmul() == {
        "output": 48 * 100 * (16 + 256) // 2,
        "grad_input": 100 * grad_input,
        "grad_weight": 100 * grad_weight,
    }


def test_throughput_and_traffic_follow_the_operands_of_each_matmul():
    found = bc.training_cost(model(), X, **OWN, backward_operands="backward")
    by_product = {key: macs for layer in found.layers[1:] for key, macs in layer.macs.items()}
    assert by_product == {  # 16 MACs, 50 steps of each
        ("output", MXFP4, MXFP4): 800, ("output", BF16, BF16): 800,
        ("grad_input", MXFP4, MXFP4): 1600, ("grad_weight", MXFP4, MXFP4): 1600,
    }  # fmt: skip
    # a step: output reads 2 operands, the two layers have 3 backward products with 2 each
    assert found.uniform_traffic == 50 * (4 * 4 + 4 * 16) + 100 * 6 * 4
    assert found.baseline.startswith("static w=bf16/mxfp4,a=bf16/mxfp4,e=mxfp4")


def test_the_published_conventions_count_both_backward_products_at_backward_bits():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))  # not converted
    for each in (net, model()):
        found = bc.training_cost(
            each, X, **OWN, backward_operands="backward", convention="paper"
        ).by_matmul()
        assert found == {
            "output": 48 * 50 * (16 + 256), "grad_input": 48 * 1600, "grad_weight": 48 * 1600,
        }  # fmt: skip
    with pytest.raises(ValueError, match="8"):
        bc.training_cost(
            net, X, forward=8, backward=8, total_steps=4, backward_operands="backward",
            convention="paper",
        )  # fmt: skip


def test_a_meter_counts_the_same_and_its_state_round_trips():
    net = model()
    bits = bc.PrecisionScheduler(net, **OWN, backward_operands="backward")
    meter = CostMeter(net, X)
    for step in range(100):
        if step == 70:
            state = json.loads(json.dumps(meter.state_dict()))
            assert state["layers"]["2"] == [
                ["mxfp4", "mxfp4", "mxfp4", 50, 50],
                ["bf16", "bf16", "mxfp4", "mxfp4", "mxfp4", 20, 20],
            ]
            meter = CostMeter(net, X)
            meter.load_state_dict(state)
        meter.step()
        bits.step()
    before = bc.training_cost(net, X, **OWN, backward_operands="backward")
    assert meter.by_matmul() == before.by_matmul()
    assert meter.cost().relative == before.relative  # tops: bf16 in output only


def test_attention_of_nvfp4_stays_in_bf16_whatever_backward_reads():
    net = nn.ModuleList([bc.MatMul(), nn.Linear(4, 4)])
    bc.quantize_model(net, NVFP4())
    precision = bc.Precision.parse("w=bf16/nvfp4,a=bf16/nvfp4,e=nvfp4")
    bf16, nvfp4 = FORMATS["bf16"], FORMATS["nvfp4"]
    assert operand_bits(net[0], precision) == (bf16, bf16, bf16)
    assert operand_bits(net[1], precision) == (bf16, bf16, nvfp4, nvfp4, nvfp4)
