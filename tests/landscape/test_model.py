"""`loss_landscape`: the surface of a model of one's own."""

import math

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.landscape import loss_landscape
from bitcycle.landscape.surface import make_directions
from tests import toys
from tests.landscape.test_surface import assert_same, loss_of, state_of, trained


class Bowl:
    """The squared distance of the weights from where they are, relative to their own square."""

    def __init__(self, model):
        self.goal = {name: value.clone() for name, value in model.named_parameters()}

    def __call__(self, model):
        parts = [
            (p - self.goal[name]).double().square().sum() for name, p in model.named_parameters()
        ]
        return sum(parts) / sum(w.double().square().sum() for w in self.goal.values())


def test_a_quadratic_loss_gives_circles():
    """|a d1 + b d2|^2 / |w|^2 = a^2 + b^2 + 2 a b cos, as both directions have the norm of w.

    Two random directions in 65536 dimensions have a cosine of about 1 / 256.
    """
    model = nn.Linear(256, 256, bias=False)
    found = loss_landscape(model, Bowl(model), grid=9)
    first, second = (d["weight"].double() for d in make_directions(model, seed=0))
    cosine = (first * second).sum() / (first.norm() * second.norm())
    assert abs(cosine) < 4 / 256
    for alpha, row in zip(found.alphas, found.losses, strict=True):
        for beta, loss in zip(found.betas, row, strict=True):
            expected = alpha**2 + beta**2 + 2 * alpha * beta * cosine.item()
            assert loss == pytest.approx(expected, abs=1e-6)
            assert loss == pytest.approx(alpha**2 + beta**2, abs=2 * 4 / 256)
    assert found.center == 0.0
    at_half = found.sharpness.rises[1]
    assert at_half == pytest.approx(0.25, abs=0.02)  # r^2, and what a grid of 9 adds


@pytest.mark.parametrize("precision", [{"*": "w8a8", "head": "w4a4"}, "fp32"])
def test_bits_can_be_given_in_every_form(precision):
    model = trained()
    model.eval()
    with torch.no_grad(), bc.at_precision(model, precision):
        expected = loss_of(model).item()
    found = loss_landscape(model, loss_of, grid=3, ranges="observed", precision=precision)
    assert found.center == expected
    assert bc.get_precision(model) == bc.Precision.parse("w8a8e8")


def test_a_float_model_has_no_bits():
    model = toys.net()
    assert loss_landscape(model, loss_of, grid=3).precision == "fp32"
    assert loss_landscape(model, loss_of, grid=3, precision="fp32").precision == "fp32"
    with pytest.raises(ValueError, match="no quantized layer"):
        loss_landscape(model, loss_of, grid=3, precision="w8a8")


def test_the_model_is_what_it_was_also_after_an_exception():
    model = trained()
    before = state_of(model)
    calls = []

    def fails_late(moved):
        calls.append(1)
        if len(calls) == 6:
            raise RuntimeError("out of memory")
        return loss_of(moved)

    loss_landscape(model, loss_of, grid=3, precision="w2a2")
    assert_same(state_of(model), before)
    with pytest.raises(RuntimeError, match="out of memory"):
        loss_landscape(model, fails_late, grid=3)
    assert_same(state_of(model), before)


def test_an_interrupted_one_resumes_and_equals_an_uninterrupted_one(tmp_path):
    model, calls = trained(), []
    seen = []
    expected = loss_landscape(model, loss_of, grid=5, progress=lambda *n: seen.append(n))
    assert seen == [(done, 25) for done in range(26)]

    def counted(moved, stop=None):
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(1)
        return loss_of(moved)

    partial = tmp_path / "points.jsonl"
    with pytest.raises(KeyboardInterrupt):
        loss_landscape(model, lambda m: counted(m, 9), grid=5, partial=partial)
    assert loss_landscape(model, counted, grid=5, partial=partial) == expected
    assert len(calls) == 25
    assert not partial.exists()


def test_points_of_other_weights_are_not_taken(tmp_path):
    model, partial, left = toys.net(), tmp_path / "points.jsonl", [1] * 5

    def interrupted(moved):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return loss_of(moved)

    with pytest.raises(KeyboardInterrupt):
        loss_landscape(model, interrupted, grid=3, partial=partial)
    assert len(partial.read_text().splitlines()) == 6  # the origin and five points
    other = toys.net(seed=1)
    expected = loss_landscape(other, loss_of, grid=3)
    assert loss_landscape(other, loss_of, grid=3, partial=partial) == expected


def test_losses_that_are_not_finite_are_kept_and_counted():
    model = nn.Linear(4, 4)
    goal = model.weight.detach().clone()

    def cliff(moved):
        far = (moved.weight - goal).norm() / goal.norm()
        return far if far < 1.2 else torch.tensor(math.inf)

    found = loss_landscape(model, cliff, grid=5)
    assert 0 < found.num_nonfinite < 25
    assert found.losses[0][0] == math.inf or found.losses[0][4] == math.inf
