"""The rules of sbm_full: where they differ from sbm's."""

from __future__ import annotations

import torch
from torch import nn

import bitcycle as bc
from bitcycle.quantizers import SBMFull

from ..toys import randn
from .rounding import assert_unbiased

X = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
KEY = torch.tensor([123, 456], dtype=torch.int32)


def test_the_check_values_of_the_specification() -> None:
    for bits, expected in (
        # the shared grid's check values; .1 and .7 are exact ties at 8 bits
        (3, [-1.0, -0.571429, 0.285714, 0.714286, 2.0]),
        (8, [-1.0, -0.4, 0.105882, 0.694118, 2.0]),
    ):
        rule = SBMFull()
        levels = torch.tensor(2**bits - 1)
        values = rule.encode("weight", X, levels, rule.range_of("weight", X)).dequantize()
        torch.testing.assert_close(values, torch.tensor(expected), rtol=0, atol=1e-6)


def test_a_weight_has_one_range_unless_channels_are_asked_for() -> None:
    w = torch.tensor([[0.0, 1.0], [-3.0, 2.0]])
    assert [end.item() for end in SBMFull().range_of("weight", w, (0,))] == [-3.0, 2.0]
    low, high = SBMFull(weight_range="channel").range_of("weight", w, (0,))
    assert (low.tolist(), high.tolist()) == ([[0.0], [-3.0]], [[1.0], [2.0]])


def test_an_activation_has_the_mean_of_its_samples_ranges() -> None:
    x = torch.stack([X, 3 * X]).view(2, 5, 1)
    assert [end.item() for end in SBMFull().range_of("act", x)] == [-2.0, 4.0]
    assert [end.item() for end in SBMFull().range_of("act", X)] == [-1.0, 2.0]  # no samples


def test_running_ranges_are_a_tenth_old_and_nine_tenths_new_as_in_the_authors_code() -> None:
    layer = bc.quantize_model(nn.Linear(5, 2), "sbm_full")
    bc.set_precision(layer, "w8a8")
    layer(X.view(1, 5))
    layer(3 * X.view(1, 5))
    observed, low, spread = layer.act_range[0].tolist()
    assert (observed, round(low, 5), round(spread, 5)) == (2, -2.8, 8.4)  # 0.1 x 3 + 0.9 x 9


def test_an_error_has_the_range_of_the_whole_tensor() -> None:
    e = torch.stack([X, 3 * X])
    assert [end.item() for end in SBMFull().range_of("error", e)] == [-3.0, 6.0]


def test_grad_weight_reads_the_error_as_it_arrived() -> None:
    rule, levels = SBMFull(), torch.tensor(3, dtype=torch.int32)
    within = rule.range_of("error", X)
    for_input, for_weight = rule.encode_error(X, levels, within, KEY)
    assert torch.equal(for_weight.dequantize(), X)
    assert not torch.equal(for_input.dequantize(), X)


def test_grad_weight_reads_16_bits_if_asked_and_never_fewer_than_grad_input() -> None:
    rule, e = SBMFull(grad_weight_error=16), randn(1000)
    within = rule.range_of("error", e)
    step = float((e.max() - e.min()) / (2**16 - 1))
    for bits, finest in ((4, step), (20, step / 15)):
        levels = torch.tensor(2**bits - 1, dtype=torch.int32)
        _, fine = rule.encode_error(e, levels, within, KEY)
        off = float((fine.dequantize() - e).abs().max())
        assert 0 < off <= finest * 1.01


def test_the_two_errors_do_not_share_their_noise() -> None:
    """With the same noise both would round the same way wherever their grids coincide."""
    rule, e = SBMFull(grad_weight_error=4), randn(2000)
    levels = torch.tensor(15, dtype=torch.int32)
    one, other = rule.encode_error(e, levels, rule.range_of("error", e), KEY)
    differ = (one.dequantize() != other.dequantize()).float().mean().item()
    assert 0.2 < differ < 0.45  # 2 p (1 - p), averaged over p: 1/3


def test_a_stochastic_error_is_unbiased() -> None:
    rule, e = SBMFull(), randn(60)
    within = rule.range_of("error", e)
    inner = (e > within[0]) & (e < within[1])
    step = ((within[1] - within[0]) / 7).expand(int(inner.sum()))
    levels = torch.tensor(7)
    assert_unbiased(
        (e - within[0])[inner],
        step,
        lambda key: (rule.encode("error", e, levels, within, key).dequantize() - within[0])[inner],
    )


def test_a_layer_multiplies_two_errors() -> None:
    rule = SBMFull(error_rounding="nearest")
    layer = bc.quantize_model(nn.Linear(3, 4, bias=False), rule, kernel="simulate")
    bc.set_precision(layer, "e2")
    x, e = randn(5, 3).requires_grad_(), randn(5, 4, seed=2)
    layer(x).backward(e)
    step = (e.max() - e.min()) / 3
    coarse = torch.round((e - e.min()) / step) * step + e.min()
    torch.testing.assert_close(x.grad, coarse @ layer.weight)
    torch.testing.assert_close(layer.weight.grad, e.t() @ x)


def test_every_layer_is_quantized_and_batchnorms_follow_ranges_unless_declined() -> None:
    assert SBMFull().first_last == "quantized"
    assert SBMFull().norm_rule == "range"
    assert SBMFull(norm="batch").norm_rule is None
