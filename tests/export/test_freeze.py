"""Freezing: what is found, what is refused, and that the model stays as it was."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.export.freeze import freeze
from bitcycle.train.result import weights_digest
from tests.export.models import conv_net, encoder, images, ready, tokens


def test_every_product_has_its_grids_in_the_order_of_the_forward_pass():
    frozen = freeze(ready(conv_net(), images(), "w3a5"), (images(),))
    assert [p.layer for p in frozen.products] == ["0", "3", "6"]
    assert {(p.first.bits, p.second.bits) for p in frozen.products} == {(5, 3)}
    assert [tuple(p.second.scale.shape) for p in frozen.products] == [
        (4, 1, 1, 1), (5, 1, 1, 1), (3, 1),
    ]  # fmt: skip


def test_an_attention_has_four_projections_and_two_products_of_activations():
    frozen = freeze(ready(encoder(), tokens()), (tokens(),))
    rows = frozen.by_layer()["self_attn"]
    assert sorted(rows) == [0, 1, 2, 3, 5, 7]
    assert [row for row, product in rows.items() if product.weight is None] == [3, 5]


def test_the_activation_grid_is_the_observed_range():
    model = ready(nn.Linear(2, 1), torch.tensor([[-1.0, 4.1]]))
    (product,) = freeze(model, (torch.ones(1, 2),)).products
    assert product.first.offset.item() == -1.0
    assert product.first.scale.item() == pytest.approx(5.1 / 255)


def test_the_model_is_not_touched():
    model = ready(conv_net(), images()).train()
    before = weights_digest(model)
    freeze(model, (images(),))
    assert weights_digest(model) == before
    assert model.training
    assert "multiply" not in model[0].__dict__


def test_a_layer_that_is_called_twice_has_one_product():
    layer = nn.Linear(4, 4)
    model = ready(nn.Sequential(layer, nn.ReLU(), layer), torch.randn(2, 4))
    assert len(freeze(model, (torch.randn(2, 4),)).products) == 1


class Lonely(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.used(x)


def refused(model, x, match):
    with pytest.raises(ValueError, match=match):
        freeze(model, (x,))


def test_what_cannot_be_exported_is_named_with_its_reason():
    x = torch.rand(3, 4)
    unobserved = bc.quantize_model(nn.Sequential(nn.Linear(4, 4)))
    bc.set_precision(unobserved, "w8a8")
    refused(unobserved, x, "layer '0' cannot be exported: its activation range was never observed")
    dorefa = bc.quantize_model(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), "dorefa")
    bc.set_precision(dorefa, "w8a8")
    refused(dorefa, x, "grids of DoReFa are not exported")
    refused(ready(nn.Sequential(nn.LSTM(4, 4)), x), x, "time steps of LSTM are not exported")
    lookup = bc.quantize_model(nn.Sequential(nn.Embedding(5, 4)), only=["0"])
    bc.set_precision(lookup, "w8")
    refused(lookup, torch.tensor([1, 2]), "a lookup on grids is not exported")


def test_a_layer_that_the_example_does_not_reach_is_an_error():
    model = bc.quantize_model(Lonely())
    bc.set_precision(model, "w8")
    refused(model, torch.rand(3, 4), "'unused' cannot be exported: it was not used")
