"""What holds for the cost of every registered layer, model and convention: new ones too."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import bitcycle as bc
from bitcycle.convert import find_candidates
from bitcycle.cost import CONVENTIONS, count_macs
from bitcycle.nn import LAYERS
from bitcycle_lab.models import MODELS, build_model
from tests.bitcycle.contracts.examples import EXAMPLES

SMALL = {
    "transformer_lm": {"vocab_size": 50, "dim": 32, "ffn_dim": 64, "num_layers": 2},
    "lstm_lm": {"vocab_size": 50, "embedding_dim": 16, "hidden_dim": 16},
}
LARGE = {"resnet74", "resnet110", "resnet152", "resnet164"}  # deeper, otherwise as resnet38
SEEN_BY_FLOPS = ("torch.nn.", "bitcycle.")  # aggregation along edges is not


def small(name):
    packages = {"graph": "torch_geometric", "transformers": "transformers"}
    if MODELS[name].extra is not None:
        pytest.importorskip(packages[MODELS[name].extra])
    if name.startswith("imagenet"):
        with torch.device("meta"):
            model = build_model(name)
        return model, model.example_inputs(1, device="meta")
    model = build_model(name, **SMALL.get(name, {}))
    return model, model.example_inputs(2)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_the_forward_count_of_a_layer_is_the_flop_counters():
    for name in [name for name in LAYERS if name.startswith(SEEN_BY_FLOPS)]:
        module, tensors = EXAMPLES[name].module(), EXAMPLES[name].tensors()
        with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
            module(*tensors)  # a fused LSTM would count as nothing
        trace = count_macs(module, tuple(tensors))
        assert 2 * trace.macs["output"] == counter.get_total_flops() > 0, name
        assert count_macs(bc.quantize_model(module), tuple(tensors)) == trace, name


@pytest.mark.parametrize("name", [name for name in MODELS if name not in LARGE])
def test_a_model_costs_the_same_before_and_after_conversion_and_nothing_is_left_out(name):
    model, inputs = small(name)
    trace = count_macs(model, inputs)
    assert trace.macs["output"] > 0
    assert all("aggregation over edges" in line for line in trace.uncounted)
    if any(candidate.reason is None for candidate in find_candidates(model)):
        assert count_macs(bc.quantize_model(model), inputs) == trace


@pytest.mark.parametrize("name", ["digits_resnet", "resnet8", "transformer_lm", "lstm_lm"])
def test_a_meter_of_one_step_agrees_with_the_cost_before_it(name):
    for convention in CONVENTIONS.names():
        model, inputs = small(name)
        bc.quantize_model(model)
        before = bc.training_cost(
            model, inputs, forward=4, backward=8, total_steps=1, convention=convention
        )
        meter = bc.CostMeter(model, inputs)
        bc.set_precision(model, "FW4/BW8")
        meter.step()
        assert meter.cost(convention=convention) == before, convention
        assert before.bitops > 0, convention
        sums = sum(before.by_layer().values()), sum(before.by_matmul().values())
        assert sums == (before.bitops, before.bitops), convention


def test_fewer_bits_never_cost_more():
    for convention in CONVENTIONS.names():
        model, inputs = small("digits_resnet")
        bc.quantize_model(model)
        costs = [
            bc.training_cost(
                model, inputs, forward=q, backward=8, total_steps=3, convention=convention
            )
            for q in (2, 3, 5, 8, 16, 32)
        ]
        for number in ("bitops", "traffic", "uniform_traffic"):
            values = [getattr(cost, number) for cost in costs]
            assert values == sorted(values), (convention, number)
            assert values[0] < values[-1], (convention, number)
