"""The encoder that is built from a config."""

import sys

import pytest
import torch

from bitcycle.extras import MissingExtraError
from bitcycle.models import build_model

pytest.importorskip("transformers")

TINY = {"vocab_size": 30, "dim": 8, "ffn_dim": 16, "num_layers": 1, "num_heads": 2, "max_length": 6}


def tiny(**options):
    torch.manual_seed(0)
    return build_model("bert", **{**TINY, **options}).eval()


def test_the_sizes_are_those_of_the_options():
    model = tiny(num_classes=5)
    d, f = 8, 16
    embeddings = (30 + 6 + 2) * d + 2 * d  # tokens, positions, sentences; a norm
    layer = 4 * (d * d + d) + 2 * d + (d * f + f) + (f * d + d) + 2 * d
    head = (d * d + d) + (5 * d + 5)
    assert sum(p.numel() for p in model.parameters()) == embeddings + layer + head
    assert model(*model.example_inputs(3)).shape == (3, 5)


def test_padding_does_not_change_a_pair():
    model = tiny()
    tokens, mask, types = (part[:1] for part in model.example_inputs())
    short = model(tokens[:, :4], mask[:, :4], types[:, :4])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    assert torch.allclose(model(tokens, mask, types), short, atol=1e-6)
    assert not torch.allclose(model(tokens, torch.ones_like(mask), types), short, atol=1e-6)


def test_sentences_are_told_apart_and_mask_and_sentences_may_be_left_out():
    model = tiny()
    tokens, mask, types = model.example_inputs()
    assert not torch.equal(model(tokens, mask, types), model(tokens, mask, 1 - types))
    assert torch.allclose(model(tokens), model(tokens, mask, 0 * types), atol=1e-6)


def test_sizes_that_cannot_be_are_errors():
    for options, message in (
        ({"num_heads": 3}, r"dim \(8\) must be a multiple of num_heads \(3\)"),
        ({"num_layers": 0}, "num_layers must be an integer >= 1"),
        ({"dropout": 1.0}, r"dropout \(1.0\) must be in"),
    ):
        with pytest.raises(ValueError, match=message):
            tiny(**options)


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r'pip install "bitcycle\[transformers\]"'):
        tiny()
