"""Operands on grids around ordinary float torch: values forward, errors backward."""

import torch

from bitcycle.kernels import make_kernel
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.nn.product import CONTROL_SIZE, LEVELS, Plan
from bitcycle.nn.straight import error_on_grid, on_grid
from bitcycle.quantizers import SBM
from tests import naive

PLAN = Plan(
    quantizer=SBM(error_rounding="nearest"),
    kernel=make_kernel("simulate"),
    geometry=LinearGeometry(),
    roles=("act", "error"),
)
X = torch.tensor([[-1.0, -0.4, 0.1, 0.7, 2.0], [0.0, 5.0, 1.0, 2.0, 3.0]])


def control(**bits):
    numbers = torch.zeros(CONTROL_SIZE, dtype=torch.int32)
    for role, number in bits.items():
        numbers[LEVELS[role]] = 2**number - 1
    return numbers


def test_an_activation_is_on_its_grid_and_its_error_passes():
    x = X.clone().requires_grad_()
    y = on_grid(PLAN, x, control(act=3), PLAN.quantizer.range_of("act", X, (0,)))
    assert torch.equal(y, naive.per_channel(X, 3))
    (grad,) = torch.autograd.grad(y, x, X)
    assert torch.equal(grad, X)


def test_a_tensor_passes_and_its_error_is_on_its_grid():
    x, health = X.clone().requires_grad_(), torch.zeros(4)
    y = error_on_grid(PLAN, x, control(error=3), health)
    assert torch.equal(y, X)
    (grad,) = torch.autograd.grad(y, x, X)
    assert torch.equal(grad, naive.per_tensor(X, 3))
    assert torch.equal(health, torch.zeros(4))


def test_an_error_that_is_not_finite_shows_in_the_health():
    x, health = X.clone().requires_grad_(), torch.zeros(4)
    error_on_grid(PLAN, x, control(error=3), health).backward(X * torch.inf)
    assert health[LEVELS["error"]].isnan()
