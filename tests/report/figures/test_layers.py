"""Cost by layer."""

from bitcycle.report.figures import layers
from bitcycle.report.figures.layers import layer_bars, layers_chart, price_method
from bitcycle.report.runs import method_logs
from tests.report.made_up import STEPS, made_up_cost


def test_a_layer_has_a_part_for_each_matmul():
    bars = layer_bars(made_up_cost())
    assert bars.names == ("stage0.fc0", "stage0.fc1")
    assert bars.parts == {"output": (10, 10), "grad_input": (0, 20), "grad_weight": (30, 30)}
    assert [trace["x"] for trace in layers_chart(bars)["data"]] == [[10, 10], [0, 20], [30, 30]]


def test_very_deep_models_are_summed_by_stage(monkeypatch):
    monkeypatch.setattr(layers, "MOST_LAYERS", 4)
    bars = layer_bars(made_up_cost(6))
    assert bars.names == ("stage0", "stage1", "stage2")
    assert bars.parts["grad_input"] == (20, 100, 180)


def test_a_method_is_priced_as_its_run_was_configured(made):
    cost = price_method(method_logs(made)[0])
    assert cost.num_steps == STEPS
    assert cost.bitops > 0
