"""Cost by layer."""

from bitcycle.report.page import layers
from bitcycle.report.page.layers import layer_figure, layers_section, price_method
from bitcycle.report.page.recorded import record

from .conftest import made_up_cost
from .made_up import STEPS, Elements


def test_a_bar_has_a_part_for_each_matmul():
    figure = layer_figure(made_up_cost())
    assert {bar["name"]: bar["x"] for bar in figure["data"]} == {
        "output": [10, 10],
        "grad_input": [0, 20],
        "grad_weight": [30, 30],
    }
    assert figure["data"][0]["y"] == ["stage0.fc0", "stage0.fc1"]


def test_very_deep_models_are_drawn_by_stage_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(layers, "MOST_LAYERS", 4)
    figure = layer_figure(made_up_cost(6))
    assert figure["data"][0]["y"] == ["stage0", "stage1", "stage2"]
    assert figure["data"][1]["x"] == [20, 100, 180]


def test_a_method_is_priced_as_its_run_was_configured(made):
    cost = price_method(record(made)[0])
    assert cost.num_steps == STEPS
    assert [layer.name for layer in cost.layers]
    assert cost.bitops > 0


def test_what_cannot_be_priced_is_said_and_what_has_not_begun_is_left_out(made, monkeypatch):
    def refuse(method):
        raise ValueError("<it> adapts")

    monkeypatch.setattr(layers, "price_method", refuse)
    seen = Elements(layers_section(record(made)))
    assert seen.data == []
    assert "static 8/8: not known before training (<it> adapts)" in seen.text
    assert "later" not in seen.text
    assert layers_section(record(made)[3:]) is None


def test_only_so_many_methods_are_priced(made, monkeypatch):
    monkeypatch.setattr(layers, "MOST_METHODS", 1)
    monkeypatch.setattr(layers, "price_method", lambda method: made_up_cost())
    seen = Elements(layers_section(record(made)))
    assert len(seen.data) == 1
    assert "2 more methods" in seen.text
