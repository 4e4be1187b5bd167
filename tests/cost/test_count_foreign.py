"""Counts of layers from other packages: transformers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.cost import COUNTERS, Call
from tests.cost.flops import counted_macs, measured_macs


class Conv1D(nn.Module):
    """As in transformers: a linear layer with a weight (in, out)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def test_the_linear_layer_of_transformers_is_counted_by_its_name() -> None:
    module, x = Conv1D(), torch.ones(3, 4)
    products = COUNTERS["transformers.pytorch_utils.Conv1D"](Call(module, (x,), {}, module(x)))
    assert [(p.matmul, p.macs) for p in products] == [("output", 72), ("grad_weight", 72)]


def bert(attention: str) -> tuple[nn.Module, dict[str, object]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, attn_implementation=attention,
    )  # fmt: skip
    tokens = torch.arange(14).view(2, 7)
    return transformers.BertModel(config), {"input_ids": tokens, "return_dict": False}


def test_the_flop_counter_agrees_on_a_bert() -> None:
    model, inputs = bert("eager")
    expected = measured_macs(model, inputs)
    assert counted_macs(model, inputs) == expected
    assert counted_macs(bc.quantize_model(model), inputs) == expected


def test_fused_attention_counts_as_much_as_plain_attention() -> None:
    # the flop counter takes what the fused backward pass computes again, and nothing on the CPU
    assert counted_macs(*bert("sdpa")) == counted_macs(*bert("eager"))


def test_the_attention_of_a_converted_bert_follows_its_bits_and_has_rows_of_its_own() -> None:
    model, inputs = bert("sdpa")
    bc.quantize_model(model, skip=["pooler"])
    cost = bc.training_cost(model, inputs, forward=4, backward=8, total_steps=100, batch_size=2)
    # 2 sequences x 2 products x 7 x 7 x 16, each at output, grad_input and grad_weight
    rows = {layer.name: layer.bitops for layer in cost.layers}
    bits = 4 * 4 + 8 * 4 + 8 * 4
    assert rows["encoder.layer.1.attention.self"] == 100 * 2 * 2 * 7 * 7 * 16 * bits
    assert rows["pooler.dense"] == 100 * 3 * 2 * 16 * 16 * 1024  # of the first token
    assert cost.uncounted == ()
