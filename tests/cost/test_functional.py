"""Products without a module of their own, by hand and by torch's flop counter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitcycle.cost import count_macs
from tests.cost.flops import counted_macs, measured_macs


class Compute(nn.Module):
    """Runs a function of x and a (4, 4) parameter, without any layer."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.ones(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.w)


def sdpa(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q = (x @ w).unsqueeze(1)  # (N, 1, T, 4)
    return F.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x @ w,
        lambda x, w: w @ x.transpose(1, 2),
        lambda x, w: (x * w[0]) @ x.transpose(1, 2),
        lambda x, w: torch.einsum("nti,ij,nuj->ntu", x, w, x),
        lambda x, w: F.linear(x, w, w[0]),
        lambda x, w: torch.addmm(w, x[0, :4], w),
        lambda x, w: torch.baddbmm(x @ x.transpose(1, 2), x * w[0], x.transpose(1, 2)),
        lambda x, w: F.conv1d(x.transpose(1, 2), w.unsqueeze(-1)),
        lambda x, w: F.conv_transpose1d(x.transpose(1, 2), w[:, :, None].repeat(1, 1, 3)),
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_flop_counter_agrees(function, requires_grad: bool) -> None:
    model, x = Compute(function), torch.ones(2, 5, 4, requires_grad=requires_grad)
    assert counted_macs(model, x) == measured_macs(model, x)


def test_vectors_are_counted() -> None:
    # mv: 4 x 4; dot: 4
    (row,) = count_macs(
        Compute(lambda x, w: (w @ x[0, 0]).dot(x[0, 1])), torch.ones(2, 5, 4)
    ).layers
    assert row.output == 16 + 4


def test_fused_attention_is_two_products_of_every_query_with_every_key() -> None:
    (row,) = count_macs(Compute(sdpa), torch.ones(2, 5, 4)).layers
    # x w: 2 x 5 x 4 x 4; scores and mixing: 2 x 5 x 5 x 4 each
    assert row.output == 160 + 2 * 200
    assert row.grad_input == 2 * 200  # x has no gradient, the queries and the scores have
    assert row.grad_weight == 160 + 2 * 200


def test_a_parameter_is_a_weight_and_is_read_once_a_step() -> None:
    for function in (lambda x, w: x @ w, lambda x, w: w @ x.transpose(1, 2)):
        (row,) = count_macs(Compute(function), torch.ones(2, 5, 4)).layers
        assert row.output == 160
        assert ("act", "weight") in [p.roles for p in row.products]


def test_what_runs_without_gradients_has_only_an_output() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x @ w

    (row,) = count_macs(Compute(function), torch.ones(2, 5, 4, requires_grad=True)).layers
    assert row.macs == {"output": 160, "grad_input": 0, "grad_weight": 0}
