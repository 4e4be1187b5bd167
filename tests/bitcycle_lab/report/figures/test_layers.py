"""Cost by layer."""

from bitcycle_lab.report import plot
from bitcycle_lab.report.figures import layers
from bitcycle_lab.report.figures.layers import price_method
from bitcycle_lab.report.runs import method_logs
from tests.bitcycle_lab.report.made_up import STEPS, made_up_cost


def drawn(cost):
    """The names of the bars; by matmul, where each bar's part starts and how wide it is."""
    [axes] = plot(cost).axes
    parts = {
        bars.get_label(): [(bar.get_x(), bar.get_width()) for bar in bars]
        for bars in axes.containers
    }
    return [tick.get_text() for tick in axes.get_yticklabels()], parts


def test_a_layer_has_a_part_for_each_matmul():
    names, parts = drawn(made_up_cost())
    assert names == ["stage0.fc0", "stage0.fc1"]
    assert parts == {
        "output": [(0, 10), (0, 10)],
        "grad_input": [(10, 0), (10, 20)],
        "grad_weight": [(10, 30), (30, 30)],
    }


def test_very_deep_models_are_summed_by_stage(monkeypatch):
    monkeypatch.setattr(layers, "MOST_LAYERS", 4)
    names, parts = drawn(made_up_cost(6))
    assert names == ["stage0", "stage1", "stage2"]
    assert [width for _, width in parts["grad_input"]] == [20, 100, 180]


def test_a_method_is_priced_as_its_run_was_configured(made):
    cost = price_method(method_logs(made)[0])
    assert cost.num_steps == STEPS
    assert cost.bitops > 0
