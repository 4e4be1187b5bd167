"""collect: statistics of quantization, gathered while a `with` is open."""

import copy
import math

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.nn.layer import QuantizedLayer
from tests.bitcycle import naive
from tests.bitcycle.toys import linears, net, randn


def converted(model, precision="w4a4e8"):
    bc.set_precision(bc.quantize_model(model), precision)
    return model


def test_calls_and_elements_are_counted_per_layer_and_role():
    model = converted(linears(4, 3, 2))
    with bc.collect(model) as statistics:
        for _ in range(3):
            model(randn(5, 4)).sum().backward()
    rows = {(row.layer, row.role): (row.num_calls, row.num_elements) for row in statistics.rows()}
    assert rows == {
        ("0", "act"): (3, 60), ("0", "error"): (3, 45), ("0", "weight"): (3, 36),
        ("1", "act"): (3, 45), ("1", "error"): (3, 30), ("1", "weight"): (3, 18),
    }  # fmt: skip


def test_saturation_is_the_share_outside_the_grid():
    model = converted(nn.Linear(4, 1), "a2")
    bc.calibrate(model, [torch.tensor([[0.0, 3.0]]).repeat(1, 2)])  # grid 0, 1, 2, 3
    x = torch.tensor([[-0.4, 3.4, -0.6, 9.0], [0.0, 1.0, 2.0, 3.0]])
    with bc.collect(model.eval()) as statistics:
        model(x)
    assert statistics["", "act"].saturation == 2 / 8  # -0.6 and 9; 3.4 is nearest to 3 anyway


def test_sqnr_and_norms_are_those_of_the_rounding():
    model, x = converted(nn.Linear(8, 2), "a3"), randn(16, 8)
    with bc.collect(model) as statistics:
        model(x)
        model(2 * x)
    wide = x.double()
    noise = naive.per_tensor(wide, 3) - wide
    signal_power, noise_power = wide.square().sum(), noise.square().sum()
    row = statistics["", "act"]
    assert row.sqnr_db == pytest.approx(10 * math.log10(signal_power / noise_power), abs=1e-3)
    assert row.signal_norm == pytest.approx(math.sqrt(2.5 * signal_power), rel=1e-6)
    assert row.noise_norm == pytest.approx(math.sqrt(2.5 * noise_power), rel=1e-4)


def test_error_noise_is_the_difference_that_rounding_made():
    model = converted(nn.Linear(8, 8, bias=False), "e3")
    with torch.no_grad():
        model.weight.copy_(torch.eye(8))
    x, error = randn(16, 8).requires_grad_(), randn(16, 8, seed=2)
    with bc.collect(model) as statistics:
        model(x).backward(error)
    row = statistics["", "error"]
    assert row.signal_norm == pytest.approx(error.norm().item(), rel=1e-6)
    assert row.noise_norm == pytest.approx((x.grad - error).norm().item(), rel=1e-5)
    assert row.noise_norm > 0


def test_nothing_lost_is_an_infinite_ratio():
    model = converted(nn.Linear(4, 1), "a2")
    with bc.collect(model) as statistics:
        model(torch.tensor([[0.0, 1.0, 2.0, 3.0]]))
    row = statistics["", "act"]
    assert (row.sqnr_db, row.noise_norm, row.saturation) == (math.inf, 0.0, 0.0)


def test_both_operands_of_a_product_count_as_act():
    model = converted(bc.MatMul())
    with bc.collect(model) as statistics:
        model(randn(2, 3), randn(3, 5))
    assert statistics["", "act"].num_calls == 2
    assert statistics["", "act"].num_elements == 6 + 15


def test_results_are_the_same_inside_and_nothing_is_left_outside():
    model = converted(linears(4, 4))
    other, x = copy.deepcopy(model), randn(5, 4)
    with bc.collect(model) as statistics:
        inside = model(x)
        inside.sum().backward()
    assert torch.equal(inside, other(x))
    assert all(m.recorder is None for m in model.modules() if isinstance(m, QuantizedLayer))
    model(x).sum().backward()
    assert statistics["0", "act"].num_calls == 1


def test_nothing_is_left_after_an_exception_either():
    model = converted(linears(4, 4))
    with pytest.raises(KeyError), bc.collect(model):
        raise KeyError
    assert model[0].recorder is None


def test_a_collection_inside_a_collection_is_refused():
    model = converted(linears(4, 4))
    with bc.collect(model) as statistics:
        with pytest.raises(RuntimeError, match="active"), bc.collect(model):
            pass
        model(randn(5, 4))
    assert statistics["0", "act"].num_calls == 1


def test_parts_that_were_converted_separately_have_rows_of_their_own():
    model = nn.Sequential(linears(4, 4), linears(4, 4))
    for part in model:
        converted(part, "a4")
    with bc.collect(model) as statistics:
        model(randn(5, 4))
    assert sorted(row.layer for row in statistics.rows()) == ["0.0", "1.0"]


def test_a_nan_is_an_error_when_the_with_ends():
    model = converted(net())
    with pytest.raises(bc.NonFiniteError, match=r"layer conv \(act\)"), bc.collect(model):
        model(torch.full((2, 2, 6, 6), float("nan")))
    with bc.collect(model):
        model(randn(2, 2, 6, 6))  # reported once


def test_a_role_that_was_never_quantized_is_a_key_error_that_lists_the_rest():
    model = converted(linears(4, 4), "w4")
    with bc.collect(model) as statistics:
        model(randn(5, 4))
    with pytest.raises(KeyError, match="'0', 'act'"):
        statistics["0", "act"]


def test_full_precision_has_nothing_to_tell():
    model = bc.quantize_model(linears(4, 4))
    with bc.collect(model) as statistics:
        model(randn(5, 4))
    assert statistics.rows() == []
    assert "nothing" in statistics.verdict


def test_rows_are_sorted_by_their_ratio_the_worst_first_and_the_verdict_names_it():
    """Layer 1 has 2 bits; the weights of layer 0 lie on their grid and lose nothing."""
    model = bc.quantize_model(linears(4, 4, 4))
    bc.set_precision(model, {"0": "w8a8", "1": "w2a8"})
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([0.0, 1.0, 2.0, 255.0]).repeat(4, 1))
    with bc.collect(model) as statistics:
        model(randn(5, 4))
    rows = statistics.rows()
    assert (rows[0].layer, rows[0].role) == ("1", "weight")
    assert [row.sqnr_db for row in rows] == sorted(row.sqnr_db for row in rows)
    assert rows[-1].sqnr_db == math.inf
    table, _, verdict = str(statistics).partition("\n\n")
    assert table.splitlines()[2].split()[:2] == ["1", "weight"]
    assert verdict == statistics.verdict
    assert "weight of 1" in verdict


def test_the_verdict_names_what_saturates_most():
    model = converted(nn.Linear(4, 1), "a2")
    bc.calibrate(model, [torch.tensor([[0.0, 3.0]]).repeat(1, 2)])
    with bc.collect(model.eval()) as statistics:
        model(torch.tensor([[-0.6, 9.0, 0.0, 1.0]]))
    assert "50.00 %" in statistics.verdict


@pytest.mark.slow
def test_a_compiled_model_has_the_same_statistics():
    model = converted(linears(4, 4))
    other, x = copy.deepcopy(model), randn(5, 4)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(x).square().sum().backward()
    other(x).square().sum().backward()
    with bc.collect(compiled) as statistics:
        compiled(x).square().sum().backward()
    with bc.collect(other) as expected:
        other(x).square().sum().backward()
    assert statistics.rows() == expected.rows()
    assert len(expected.rows()) == 3
