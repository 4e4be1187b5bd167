"""Which products run that no module owns."""

from __future__ import annotations

import torch
from torch import nn

from bitcycle.audit import watch_products
from bitcycle.convert import find_candidates
from tests import toys


class Scores(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.T @ x


def test_a_product_is_found_where_it_runs_and_counted_by_operator() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Scores())
    with watch_products(model, find_candidates(model)) as watch:
        model(torch.ones(3, 4))
    assert watch.found == {("1", "mm"): 2}
    assert watch.lines() == ["1: mm x2"]


def test_without_owners_every_product_is_found() -> None:
    model = toys.linears(4, 4)
    with watch_products(model, []) as watch:
        model(torch.ones(3, 4))
    assert watch.lines() == ["0: addmm"]


def test_modes_come_back_after_an_error() -> None:
    model = toys.linears(4, 4).train()
    try:
        with watch_products(model, []):
            assert not model.training
            raise KeyError
    except KeyError:
        pass
    assert model.training
    assert model[0].training
