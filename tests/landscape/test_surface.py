"""The loss of moved weights, and the model afterwards."""

import pytest
import torch
import torch.nn.functional as F

import bitcycle as bc
from bitcycle.landscape.surface import make_directions, surface_of
from bitcycle.precision import Precision
from tests import toys


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


def test_a_point_is_the_loss_at_the_weights_plus_both_directions():
    model = toys.linears(4, 3, 2)
    first, second = make_directions(model, seed=2)
    before = {name: value.clone() for name, value in model.named_parameters()}
    seen = {}

    def look(moved):
        seen.update({name: value.clone() for name, value in moved.named_parameters()})
        return 1.5

    with surface_of(model, look, seed=2) as surface:
        assert surface.loss_at(0.7, -0.2) == 1.5
    for name in ("0.weight", "1.weight"):
        expected = before[name] + 0.7 * first[name] - 0.2 * second[name]
        torch.testing.assert_close(seen[name], expected)
    for name in ("0.bias", "1.bias"):
        assert torch.equal(seen[name], before[name])


def test_points_do_not_depend_on_the_order_they_are_asked_for_in():
    model = trained()
    points = [(0.0, 0.0), (0.5, -0.5), (-1.0, 1.0), (0.25, 0.0)]
    with surface_of(model, loss_of) as surface:
        forth = {point: surface.loss_at(*point) for point in points}
        back = {point: surface.loss_at(*point) for point in reversed(points)}
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
    with surface_of(model, loss_of) as surface:
        assert surface.loss_at(0.0, 0.0) == expected
        far = surface.loss_at(1.0, 1.0)
    with surface_of(model, loss_of, ranges="observed") as surface:
        assert surface.loss_at(1.0, 1.0) != far


def test_a_minus_zero_stays_one_at_the_centre():
    model = toys.linears(2, 1)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[-0.0, 1.0]]))
    with surface_of(model, lambda m: 1 / m[0].weight[0, 0]) as surface:
        assert surface.loss_at(0.0, 0.0) == -float("inf")


@pytest.mark.parametrize("ranges", ["batch", "observed"])
def test_afterwards_the_model_is_what_it_was_to_the_bit(ranges):
    model = trained()
    before, grad = state_of(model), model.conv.weight.grad.clone()
    bits = Precision.parse("w3a3")
    with surface_of(model, loss_of, precision=bits, ranges=ranges) as surface:
        surface.loss_at(0.3, 0.4)
        assert not model.training
    assert_same(state_of(model), before)
    assert torch.equal(model.conv.weight.grad, grad)
    assert model.conv.is_observed


def test_a_loss_per_sample_and_an_unknown_policy_are_errors():
    model = toys.linears(2, 1)
    with (
        pytest.raises(ValueError, match=r"one number, got a tensor of shape \(3,\)"),
        surface_of(model, lambda m: torch.ones(3)) as surface,
    ):
        surface.loss_at(0.0, 0.0)
    with (
        pytest.raises(ValueError, match="ranges.*batch, observed"),
        surface_of(model, loss_of, ranges="running"),
    ):
        pass
