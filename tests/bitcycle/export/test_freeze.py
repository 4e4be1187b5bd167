"""A frozen model: a copy with the grids of its products."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.export.freeze import Grid, freeze, grid_of
from tests.bitcycle.export.models import conv_net, encoder, images, ready, tokens


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
    before = {name: value.clone() for name, value in model.state_dict().items()}
    freeze(model, (images(),))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
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
    refused(unobserved, x, "'0'.*never observed")
    dorefa = bc.quantize_model(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), "dorefa")
    bc.set_precision(dorefa, "w8a8")
    refused(dorefa, x, "DoReFa")
    refused(ready(nn.Sequential(nn.LSTM(4, 4)), x), x, "LSTM")
    lookup = bc.quantize_model(nn.Sequential(nn.Embedding(5, 4)), only=["0"])
    bc.set_precision(lookup, "w8")
    refused(lookup, torch.tensor([1, 2]), "lookup")


def test_a_layer_that_the_example_does_not_reach_is_an_error():
    model = bc.quantize_model(Lonely())
    bc.set_precision(model, "w8")
    refused(model, torch.rand(3, 4), "'unused'")


def number(value):
    return torch.tensor(value)


def test_codes_round_half_to_even_and_stop_at_the_ends():
    grid = Grid(bits=2, scale=number(0.5), offset=number(-1.0))
    x = number([-9.0, -1.0, -0.75, -0.25, 0.5, 9.0])
    assert grid.codes_of(x).tolist() == [0, 0, 0, 2, 3, 3]
    assert grid.round(x).tolist() == [-1.0, -1.0, -1.0, 0.0, 0.5, 0.5]


def test_a_symmetric_grid_leaves_out_its_lowest_code():
    grid = Grid(bits=3, scale=number(1.0), offset=number(-4.0), lowest=1)
    assert grid.round(number([-9.0, 9.0])).tolist() == [-3.0, 3.0]
    assert [end.item() for end in grid.limits()] == [-3.0, 3.0]


@pytest.mark.parametrize(
    ("offset", "zero"),
    [(0.0, 0), (-127.5, 255), (-128.0, None), (0.5, None), (-0.6, None)],
)
def test_a_zero_point_is_a_code_or_there_is_none(offset, zero):
    found = Grid(bits=8, scale=number(0.5), offset=number(offset)).zero_point
    assert (None if found is None else found.item()) == zero


@pytest.mark.parametrize(
    "rule",
    [bc.quantizers.SBM(), bc.quantizers.SBM(zero="integer"), "absmax", "pow2"],
    ids=["real", "integer", "absmax", "pow2"],
)
@pytest.mark.parametrize(("bits", "role"), [(1, "weight"), (3, "act"), (8, "weight"), (11, "act")])
def test_a_grid_puts_values_where_its_rule_does(rule, bits, role):
    if bits == 1 and rule == "pow2":
        rule = "absmax"
    rule = bc.quantizers.base.make_quantizer(rule)
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(bits)) + 0.3
    within = rule.range_of(role, x, (0,) if role == "weight" else ())
    levels = number(2**bits - 1)
    grid = grid_of(rule, role, x, levels, within)
    expected = rule.encode(role, 1.5 * x, levels, within).dequantize()
    assert grid.bits == bits
    torch.testing.assert_close(grid.round(1.5 * x), expected, rtol=1e-6, atol=1e-6)
