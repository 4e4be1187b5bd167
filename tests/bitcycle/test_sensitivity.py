"""sensitivity: one layer at a time at few bits, and what that does to loss and gradient."""

import json
import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bitcycle as bc
from bitcycle.sensitivity import LayerSensitivity, Sensitivity
from tests.bitcycle.test_snapshot import assert_same, everything
from tests.bitcycle.toys import Attention, linears, net, randn


def mean_square(model, batch):
    return model(batch).square().mean()


def made_up(**changes):
    """A result with these changes of the gradient, the largest first."""
    rows = [
        LayerSensitivity(name=name, type="Linear", loss_change=0.1, gradient_change=change)
        for name, change in changes.items()
    ]
    together = LayerSensitivity(name="all", type="", loss_change=0.5, gradient_change=0.9)
    return Sensitivity(bits="4 bits", rows=tuple(rows), together=together, loss=1.0, num_batches=1)


def test_the_changes_are_those_of_their_formulas():
    """Against a loop with backward() and .grad: L_i - L_0 and |g_i - g_0| / |g_0|."""
    model = bc.quantize_model(linears(6, 5, 3), kernel="simulate")
    batches = [randn(4, 6, seed=seed) for seed in (1, 2)]

    def loss_and_gradient(precision):
        bc.set_precision(model, "fp32")
        bc.set_precision(model, precision)
        model.zero_grad()
        loss = sum(mean_square(model, batch) for batch in batches) / 2
        loss.backward()
        return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])

    float_loss, float_gradient = loss_and_gradient("fp32")
    found = bc.sensitivity(model, iter(batches), mean_square, bits=3)
    assert (found.num_batches, found.loss) == (2, pytest.approx(float_loss))
    assert {row.name for row in found.rows} == {"0", "1"}
    for row, patterns in (
        (found["0"], {"0": "w3a3"}),
        (found["1"], {"1": "w3a3"}),
        (found.together, {"*": "w3a3"}),
    ):
        loss, gradient = loss_and_gradient(patterns)
        change = (gradient - float_gradient).norm() / float_gradient.norm()
        assert row.loss_change == pytest.approx(loss - float_loss, abs=1e-6)
        assert row.gradient_change == pytest.approx(change.item(), rel=1e-4)
        assert row.gradient_change > 0


def test_a_layer_whose_weights_lie_far_apart_is_the_most_sensitive():
    """A weight of 1000 in every row, for an input of 0, rounds the other weights to 0."""
    model = linears(8, 8, 8, 8, 2)
    with torch.no_grad():
        model[2].weight[:, 0] = 1000.0
        model[1].weight[0], model[1].bias[0] = 0.0, 0.0
    bc.quantize_model(model)
    found = bc.sensitivity(model, [randn(16, 8)], mean_square)
    assert found.rows[0].name == "2"
    assert found.sensitive == ("2",)
    changes = [row.gradient_change for row in found.rows]
    assert changes == sorted(changes, reverse=True)
    assert "2" in found.verdict


@pytest.mark.parametrize("fails_at", [None, 0, 7])
def test_everything_is_left_as_it_was_also_after_an_error(fails_at):
    model = bc.quantize_model(nn.Sequential(net(), nn.Dropout(0.5)))
    scheduler = bc.PrecisionScheduler(model, forward=5, backward=6, total_steps=9)
    model(randn(5, 2, 6, 6)).sum().backward()
    scheduler.step()
    model[0].eval()
    before = everything(model)
    grads = [p.grad for p in model.parameters()]
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    calls = iter(range(1000))

    def loss_fn(model, batch):
        random.random(), np.random.rand()
        if next(calls) == fails_at:
            raise KeyboardInterrupt
        return mean_square(model, batch)

    if fails_at is None:
        bc.sensitivity(model, [randn(5, 2, 6, 6), randn(5, 2, 6, 6, seed=2)], loss_fn)
    else:
        with pytest.raises(KeyboardInterrupt):
            bc.sensitivity(model, [randn(5, 2, 6, 6)] * 9, loss_fn)
    assert_same(everything(model), before)
    assert all(p.grad is grad for p, grad in zip(model.parameters(), grads, strict=True))
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == generators[1:]


def test_dropout_draws_the_same_numbers_in_every_pass():
    """At 16 bits rounding hardly changes anything; other draws would change the loss."""
    model = bc.quantize_model(nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1)))
    found = bc.sensitivity(model, [randn(16, 8)], mean_square, bits=16)
    assert all(row.gradient_change < 1e-2 for row in found.rows)


def test_products_of_activations_have_rows_too():
    model = bc.quantize_model(Attention())
    found = bc.sensitivity(model, [randn(2, 5, 4)], mean_square, bits="w4a4e8")
    assert {row.type for row in found.rows} >= {"Linear", "MatMul"}


def test_layers_that_diverge_are_the_worst():
    model = bc.quantize_model(linears(4, 4, 4, 2))

    def loss_fn(model, batch):
        loss = mean_square(model, batch)
        return loss * math.nan if model[1].precision.weight == 4 else loss

    found = bc.sensitivity(model, [randn(3, 4)], loss_fn)
    assert found.rows[0].name == "1"
    assert "1" in found.sensitive
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["rows"][0]["name"] == "1"


# -- patterns ------------------------------------------------------------------------------------


def test_the_patterns_are_taken_by_a_scheduler_as_they_are():
    model = bc.quantize_model(linears(4, 4, 4, 4, 2))
    found = bc.sensitivity(model, [randn(8, 4)], mean_square)
    worst = found.rows[0].name
    patterns = found.patterns("CR:4-8:2", count=1)
    assert patterns == {"*": "CR:4-8:2", worst: 8}
    bits = bc.PrecisionScheduler(model, forward=patterns, backward=8, total_steps=40)
    by_layer = {name: str(precision) for name, precision in bits.precision.items()}
    assert by_layer.pop(worst) == "w8a8e8"
    assert set(by_layer.values()) == {"w4a4e8"}
    for count in (0, 4):
        forward = found.patterns("CR:4-8:2", 6, count=count)
        bc.PrecisionScheduler(model, forward=forward, backward=8, total_steps=40)
        expected = 6 if count else 4
        assert {layer.precision.weight for layer in model} == {expected}


def test_by_default_the_sensitive_layers_are_those_beyond_twice_the_median():
    found = made_up(a=0.41, b=0.2, c=0.2, d=0.1)
    assert found.sensitive == ("a",)
    assert found.patterns("CR:4-8:8") == {"*": "CR:4-8:8", "a": 8}
    assert made_up(a=0.4, b=0.2, c=0.2).patterns("CR:4-8:8", 6) == {"*": "CR:4-8:8"}


def test_layers_below_a_sensitive_one_keep_the_schedule_of_the_others():
    """A pattern selects everything below the name, too."""
    found = made_up(**{"a": 0.9, "a.inner": 0.2, "b": 0.2})
    assert found.patterns("CR:4-8:8") == {"*": "CR:4-8:8", "a": 8, "a.inner": "CR:4-8:8"}


def test_a_sensitive_layer_inside_others_keeps_its_bits():
    found = made_up(**{"a.b.c": 0.9, "a": 0.9, "a.b": 0.2, "d": 0.2, "e": 0.2})
    assert list(found.patterns(4).items()) == [("*", 4), ("a", 8), ("a.b", 4), ("a.b.c", 8)]


def test_a_model_that_is_one_layer_has_patterns():
    model = bc.quantize_model(nn.Linear(4, 2))
    found = bc.sensitivity(model, [randn(8, 4)], mean_square)
    forward = found.patterns("CR:4-8:2", count=1)
    bc.PrecisionScheduler(model, forward=forward, backward=8, total_steps=40)
    assert model.precision.weight == 8


@pytest.mark.parametrize("count", [-1, 3])
def test_a_count_of_layers_that_are_not_there_is_an_error(count):
    with pytest.raises(ValueError, match=str(count)):
        made_up(a=0.4, b=0.2).patterns(4, count=count)


# -- wrong calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"batches": []}, ValueError),
        ({"loss_fn": lambda model, batch: 3.0}, TypeError),
        ({"loss_fn": lambda model, batch: model(batch)}, TypeError),
        ({"loss_fn": lambda model, batch: mean_square(model, batch).detach()}, TypeError),
        ({"loss_fn": lambda model, batch: mean_square(model, batch) * math.nan}, bc.NonFiniteError),
        ({"bits": 0}, ValueError),
        ({"bits": "w4x3"}, ValueError),
        ({"model": linears(4, 2)}, ValueError),
    ],
)
def test_what_cannot_be_measured_is_an_error(changes, error):
    model = bc.quantize_model(linears(4, 2))
    given = {"model": model, "batches": [randn(3, 4)], "loss_fn": mean_square, **changes}
    with pytest.raises(error):
        bc.sensitivity(**given)
    assert bc.get_precision(model) == bc.Precision()


def test_an_unknown_layer_is_a_key_error_that_lists_the_others():
    with pytest.raises(KeyError, match="a, b"):
        made_up(a=0.4, b=0.2)["c"]


def test_a_result_survives_json_and_its_table_has_a_row_per_layer():
    found = made_up(a=0.4, b=0.2)
    assert Sensitivity.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    table, _, verdict = str(found).partition("\n\n")
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["a", "b", "all"]
    assert verdict == found.verdict


def test_progress_is_a_line_per_layer_and_one_for_all():
    lines = []
    model = bc.quantize_model(linears(4, 3, 2))
    bc.sensitivity(model, [randn(3, 4)], mean_square, progress=lines.append)
    assert [line.split()[1] for line in lines] == ["0", "1", "all"]


def test_tied_weights_and_frozen_parameters_are_no_problem():
    model = linears(4, 4, 4)
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    bc.quantize_model(model)
    found = bc.sensitivity(model, [(randn(3, 4), torch.tensor([0, 1, 2]))],
                           lambda m, b: F.cross_entropy(m(b[0]), b[1]))  # fmt: skip
    assert len(found.rows) == 2
