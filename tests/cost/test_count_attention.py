"""Counts of nn.MultiheadAttention by hand and by torch's flop counter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bitcycle.cost import count_macs
from tests.cost.flops import counted_macs, measured_macs


def test_attention_is_four_projections_and_two_products() -> None:
    x = torch.ones(2, 5, 8, requires_grad=True)
    trace = count_macs(nn.MultiheadAttention(8, 2, batch_first=True), (x, x, x))
    (row,) = trace.layers
    # N = 2, L = S = 5, E = 8: 4 projections of 10 x 64, 2 products of 2 x 5 x 5 x 8
    assert row.macs == dict.fromkeys(("output", "grad_input", "grad_weight"), 2560 + 800)
    assert trace.uncounted == ()  # out_proj is read, never called: it is in the row
    by_roles = {(p.matmul, p.roles): p.macs for p in row.products}
    assert by_roles["output", ("act", "weight")] == 2560
    assert by_roles["output", ("act", "act")] == 800


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"kdim": 6, "vdim": 4},
        {"add_bias_kv": True, "add_zero_attn": True},
        {"bias": False},
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_flop_counter_agrees(options: dict[str, object], requires_grad: bool) -> None:
    model = nn.MultiheadAttention(8, 2, **options)
    widths = 8, options.get("kdim", 8), options.get("vdim", 8)
    lengths = (3, 3, 3) if options.get("batch_first") else (3, 5, 5)
    shapes = [(n, 2, w) for n, w in zip(lengths, widths, strict=True)]
    q, k, v = (torch.ones(shape, requires_grad=requires_grad) for shape in shapes)
    assert counted_macs(model, (q, k, v)) == measured_macs(model, (q, k, v))


def test_a_sequence_without_a_batch_is_counted() -> None:
    x = torch.ones(5, 8)
    (row,) = count_macs(nn.MultiheadAttention(8, 2), (x, x, x), batch_size=1).layers
    assert row.output == 4 * 5 * 64 + 2 * 25 * 8


def test_a_frozen_encoder_layer_does_not_take_the_path_that_skips_its_modules() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).requires_grad_(False)
    trace = count_macs(model, torch.ones(2, 5, 8))
    assert [layer.name for layer in trace.layers] == ["self_attn", "linear1", "linear2"]
    assert trace.macs["grad_weight"] == 0
    assert trace.uncounted == ()
    assert torch.backends.mha.get_fastpath_enabled()
