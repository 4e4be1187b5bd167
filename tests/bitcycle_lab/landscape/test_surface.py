"""Directions, the loss of moved weights, and `loss_landscape` with its file."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bitcycle as bc
from bitcycle.precision import Precision
from bitcycle_lab.landscape import Landscape, loss_landscape
from bitcycle_lab.landscape.surface import (
    filter_normalize,
    gaussian,
    grid_values,
    loss_surface,
    make_direction,
)
from tests.bitcycle import toys

# -- surfaces -------------------------------------------------------------------------------------


def state_of(model):
    """Everything that must come back: state, buffers that are not saved, modes, bits."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    bits = bc.get_precision(model) if hasattr(model, "head") else None
    return (
        {name: value.clone() for name, value in tensors.items()},
        [module.training for module in model.modules()],
        bits,
    )


def assert_same(one, other):
    assert one[0].keys() == other[0].keys()
    for name in one[0]:
        assert torch.equal(one[0][name], other[0][name]), name
    assert one[1:] == other[1:]


def trained(precision="w8a8e8"):
    """A converted net that has observed ranges and is in the middle of training."""
    model = bc.quantize_model(toys.net(), max_bits=8)
    bc.set_precision(model, precision)
    for seed in range(3):
        loss_of(model, seed).backward()
    return model


def loss_of(model, seed=0):
    torch.manual_seed(seed)  # dropout
    targets = torch.arange(6) % 3
    return F.cross_entropy(model(toys.randn(6, 2, 6, 6, seed=seed)), targets)


FLOAT, EIGHT = Precision(), Precision.parse("w8a8e8")


def test_a_point_is_the_loss_at_the_weights_plus_both_directions():
    model = toys.linears(4, 3, 2)
    first, second = (make_direction(model, 2, number) for number in (0, 1))
    before = {name: value.clone() for name, value in model.named_parameters()}
    seen = {}

    def look(moved):
        seen.update({name: value.clone() for name, value in moved.named_parameters()})
        return 1.5

    with loss_surface(model, look, seed=2, precision=FLOAT) as loss_at:
        assert loss_at(0.7, -0.2) == 1.5
    for name in ("0.weight", "1.weight"):
        expected = before[name] + 0.7 * first[name] - 0.2 * second[name]
        torch.testing.assert_close(seen[name], expected)
    for name in ("0.bias", "1.bias"):
        assert torch.equal(seen[name], before[name])


def test_points_do_not_depend_on_the_order_they_are_asked_for_in():
    model = trained()
    points = [(0.0, 0.0), (0.5, -0.5), (-1.0, 1.0), (0.25, 0.0)]
    with loss_surface(model, loss_of, precision=EIGHT) as loss_at:
        forth = {point: loss_at(*point) for point in points}
        back = {point: loss_at(*point) for point in reversed(points)}
    assert forth == back
    assert len(set(forth.values())) == 4


@pytest.mark.filterwarnings("ignore::bitcycle.warnings.BitcycleWarning")
def test_by_default_activations_are_put_on_the_range_of_each_batch():
    """As in a model that has observed nothing; far out, the ranges of training would clip."""
    model = trained()
    fresh = bc.quantize_model(toys.net(), max_bits=8)
    fresh.load_state_dict({k: v for k, v in model.state_dict().items() if "act_range" not in k})
    fresh.eval()
    bc.set_precision(fresh, "w8a8e8")
    with torch.no_grad():
        expected = loss_of(fresh).item()
    with loss_surface(model, loss_of, precision=EIGHT) as loss_at:
        assert loss_at(0.0, 0.0) == expected
        far = loss_at(1.0, 1.0)
    with loss_surface(model, loss_of, precision=EIGHT, ranges="observed") as loss_at:
        assert loss_at(1.0, 1.0) != far


def test_a_minus_zero_stays_one_at_the_centre():
    model = toys.linears(2, 1)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-0.0, 1.0]]))
    with loss_surface(model, lambda m: 1 / m[0].weight[0, 0], precision=FLOAT) as loss_at:
        assert loss_at(0.0, 0.0) == -math.inf


@pytest.mark.parametrize("ranges", ["batch", "observed"])
def test_the_model_is_what_it_was_to_the_bit_also_after_an_exception(ranges):
    model = trained()
    before, grad = state_of(model), model.conv.weight.grad.clone()
    calls = []

    def fails_late(moved):
        assert not moved.training
        calls.append(1)
        if len(calls) == 6:
            raise RuntimeError("out of memory")
        return loss_of(moved)

    with pytest.raises(RuntimeError, match="out of memory"):
        loss_landscape(model, fails_late, grid=3, precision="w3a3", ranges=ranges)
    assert_same(state_of(model), before)
    assert torch.equal(model.conv.weight.grad, grad)
    assert model.conv.is_observed


# -- directions -----------------------------------------------------------------------------------


def slow_filter_normalize(direction, weight):
    """d_i * |w_i| / (|d_i| + 1e-10), slice by slice, in Python's numbers."""
    out = torch.empty_like(weight)
    for i in range(weight.shape[0]):
        d, w = direction[i].flatten().tolist(), weight[i].flatten().tolist()
        scale = math.sqrt(sum(x * x for x in w)) / (math.sqrt(sum(x * x for x in d)) + 1e-10)
        out[i] = torch.tensor([x * scale for x in d]).view(weight[i].shape)
    return out


@pytest.mark.parametrize("shape", [(3, 5), (4, 2, 3, 3)])
def test_normalization_is_that_of_a_slow_one(shape):
    direction, weight = toys.randn(*shape, seed=1).double(), toys.randn(*shape, seed=2)
    torch.testing.assert_close(
        filter_normalize(direction, weight), slow_filter_normalize(direction, weight)
    )


def test_models_with_equal_names_and_shapes_share_their_gaussian_numbers():
    """Up to the norms of their own filters, whatever their weights and bits."""
    models = toys.net(seed=0), bc.quantize_model(toys.net(seed=1))
    one, other = (make_direction(model, 5, 0) for model in models)
    for name in one:
        units = [nn.functional.normalize(d[name].flatten(1), dim=1) for d in (one, other)]
        torch.testing.assert_close(*units)


def test_seeds_directions_and_names_are_independent():
    draws = [
        gaussian(4000, seed=seed, number=number, name=name)
        for seed, number, name in [(0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b")]
    ]
    correlations = np.corrcoef(draws) - np.eye(4)
    assert np.abs(correlations).max() < 4 / math.sqrt(4000)


def test_the_numbers_are_standard_normal():
    x = gaussian(200_001, seed=0, number=0, name="w")
    assert len(x) == 200_001
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs((np.abs(x) < 1).mean() - 0.6827) < 0.005  # within one deviation
    assert abs((np.abs(x) < 2).mean() - 0.9545) < 0.005
    assert abs((x**4).mean() - 3) < 0.1


# -- the grid -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num", "extent"), [(3, 1.0), (25, 0.3), (51, 1.0)])
def test_values_are_exactly_symmetric_with_0_in_the_middle_and_the_extent_at_the_ends(num, extent):
    values = grid_values(num, extent)
    assert len(values) == num
    assert values[num // 2] == 0.0
    assert (values[0], values[-1]) == (-extent, extent)
    assert all(a == -b for a, b in zip(values, reversed(values), strict=True))


def test_a_quadratic_loss_gives_circles():
    """|a d1 + b d2|^2 / |w|^2 = a^2 + b^2 + 2 a b cos, as both directions have the norm of w.

    Two random directions in 65536 dimensions have a cosine of about 1 / 256.
    """
    model = nn.Linear(256, 256, bias=False)
    goal = model.weight.detach().clone().double()
    found = loss_landscape(
        model, lambda m: (m.weight - goal).square().sum() / goal.square().sum(), grid=9
    )
    first, second = (make_direction(model, 0, n)["weight"].double() for n in (0, 1))
    cosine = (first * second).sum() / (first.norm() * second.norm())
    assert abs(cosine) < 4 / 256
    for alpha, row in zip(found.alphas, found.losses, strict=True):
        for beta, loss in zip(found.alphas, row, strict=True):
            expected = alpha**2 + beta**2 + 2 * alpha * beta * cosine.item()
            assert loss == pytest.approx(expected, abs=1e-6)
    assert found.center == 0.0
    assert found.sharpness().rises[1] == pytest.approx(0.25, abs=0.02)  # r^2, and interpolation


def test_the_numbers_of_a_fixed_model_stay_what_they_are():
    """Computed once; another hash, norm or grid changes them."""
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]]))
    found = loss_landscape(model, lambda m: m.weight.sum().square(), grid=3, seed=7)
    expected = [
        [26.880848, 1.2059072, 8.9305229],
        [5.4594035, 3.0625, 34.065159],
        [0.26173627, 21.142876, 75.423584],
    ]
    np.testing.assert_allclose(found.losses, expected, rtol=1e-6)


@pytest.mark.parametrize("precision", [None, {"*": "w8a8", "head": "w4a4"}, "w3a3", "fp32"])
def test_bits_can_be_given_in_every_form(precision):
    model = trained()
    model.eval()
    with torch.no_grad(), bc.at_precision(model, precision or "w8a8e8"):
        expected = loss_of(model).item()
    found = loss_landscape(model, loss_of, grid=3, ranges="observed", precision=precision)
    assert found.center == expected
    assert bc.get_precision(model) == EIGHT


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"grid": 50}, "50"),
        ({"grid": 1}, "1"),
        ({"extent": 0.0}, "0.0"),
        ({"extent": math.nan}, "nan"),
        ({"ranges": "running"}, "running"),
        ({"loss_fn": lambda m: torch.ones(3)}, r"\(3,\)"),
        ({"model": nn.BatchNorm1d(3)}, "BatchNorm1d"),
        ({"precision": "w8a8"}, "no quantized layer"),  # of a float model
    ],
)
def test_what_cannot_be_is_an_error_that_names_it(options, part):
    with pytest.raises(ValueError, match=part):
        loss_landscape(**{"model": toys.linears(2, 1), "loss_fn": lambda m: 1.0, **options})


# -- the file -------------------------------------------------------------------------------------


def stopped_after(num_calls, calls):
    def loss(model):
        if len(calls) == num_calls:
            raise KeyboardInterrupt
        calls.append(1)
        return loss_of(model)

    return loss


def test_an_interrupted_one_resumes_and_equals_an_uninterrupted_one(tmp_path):
    model, calls, seen, file = trained(), [], [], tmp_path / "landscape.json"
    expected = loss_landscape(model, loss_of, grid=5, progress=lambda *n: seen.append(n))
    assert seen == [(done, 25) for done in range(26)]
    with pytest.raises(KeyboardInterrupt):
        loss_landscape(model, stopped_after(13, calls), grid=5, file=file)  # in the third row
    with pytest.raises(ValueError, match="landscape.json"):
        Landscape.read(file)
    stored = json.loads(file.read_text())
    assert stored["losses"] == [list(row) for row in expected.losses[:2]]
    assert loss_landscape(model, stopped_after(None, calls), grid=5, file=file) == expected
    assert len(calls) == 13 + 1 + 15  # the centre again, then three rows
    assert Landscape.read(file) == expected
    content = file.read_bytes()
    assert loss_landscape(model, stopped_after(30, calls), grid=5, file=file) == expected
    assert file.read_bytes() == content


def test_another_landscape_is_replaced_only_on_demand(tmp_path):
    file = tmp_path / "landscape.json"
    model, options = trained(), {"grid": 3, "settings": {"data": "digits"}, "file": file}
    loss_landscape(model, loss_of, **options)
    content = file.read_bytes()
    for part, other in [
        ("grid", {"grid": 5}),
        ("extent", {"extent": 0.5}),
        ("seed", {"seed": 1}),
        ("bits", {"precision": "w4a4"}),
        ("ranges", {"ranges": "observed"}),
        ("letters", {"settings": {"data": "letters"}}),
        ("center", {"loss_fn": lambda m: 2 * loss_of(m)}),
        ("weights", {"model": toys.net()}),
    ]:
        call = {"model": model, "loss_fn": loss_of, **options, **other}
        with pytest.raises(ValueError, match=part) as caught:
            loss_landscape(**call)
        assert len(str(caught.value)) < len(str(file)) + 200
        assert file.read_bytes() == content
    found = loss_landscape(**call, replace=True)
    assert Landscape.read(file) == found
    file.write_text("[1]")
    with pytest.raises(ValueError, match=r"landscape\.json"):
        loss_landscape(**call)
    assert loss_landscape(**call, replace=True) == Landscape.read(file) == found


def test_losses_that_are_not_finite_are_kept_and_counted(tmp_path):
    model = nn.Linear(4, 4)
    goal = model.weight.detach().clone()

    def cliff(moved):
        far = (moved.weight - goal).norm() / goal.norm()
        return far if far < 1.2 else torch.tensor(math.inf)

    found = loss_landscape(model, cliff, grid=5, file=tmp_path / "landscape.json")
    assert 0 < found.num_nonfinite < 25
    assert found.losses[0][0] == math.inf or found.losses[0][4] == math.inf
    assert Landscape.read(tmp_path / "landscape.json") == found
