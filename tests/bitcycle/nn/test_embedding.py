"""Embeddings: converted by name only, rows of the weight on grids of their own."""

import copy
import pickle

import pytest
import torch
from torch import nn

import bitcycle as bc
from tests.bitcycle import naive
from tests.bitcycle.toys import randn

TOKENS = torch.tensor([[0, 2, 2], [4, 1, 0]])


def embedding(**options):
    torch.manual_seed(0)
    return nn.Embedding(5, 4, **options)


def bag(mode="mean"):
    torch.manual_seed(0)
    return nn.EmbeddingBag(5, 4, mode=mode)


class Net(nn.Module):
    """Tokens to scores, with a decoder that shares the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.decoder = embedding(), nn.Linear(4, 4), nn.Linear(4, 5)
        self.decoder.weight = self.embed.weight

    def forward(self, tokens):
        return self.decoder(self.mix(self.embed(tokens)))


def converted(module, precision="w4"):
    bc.set_precision(bc.quantize_model(module, only=[nn.Embedding]), precision)
    return module


def test_it_stays_float_by_default_and_is_no_product_that_stayed_float():
    model = bc.quantize_model(Net())
    assert type(model.embed) is nn.Embedding
    rows = bc.audit(model, TOKENS).rows
    assert [row.name for row in rows if row.multiplies] == ["mix", "decoder"]


def test_a_pattern_about_it_converts_it():
    for pattern in ("net.embed", "net.e*", "*", nn.Embedding):
        model = nn.ModuleDict({"net": Net()})
        bc.quantize_model(model, only=[pattern])
        assert type(model["net"].embed).__name__ == "QuantizedEmbedding"


def test_a_pattern_about_a_module_around_it_does_not():
    model = nn.ModuleDict({"net": Net()})
    bc.quantize_model(model, only=["net"])
    assert type(model["net"].embed) is nn.Embedding
    assert len(bc.audit(model).converted_rows) == 2


def test_it_can_join_layers_that_were_converted_before():
    model = bc.quantize_model(Net())
    bc.quantize_model(model, only=["embed"])
    bc.set_precision(model, "FW4/BW8")
    assert model.embed.shared is model.mix.shared
    assert len(bc.audit(model).converted_rows) == 3
    bc.quantize_model(model, "dorefa")  # new settings for all that is converted
    assert type(model.embed.settings.quantizer) is bc.quantizers.DoReFa


def test_it_looks_up_rows_that_are_on_grids_of_their_own():
    for bits in (1, 3, 8):
        module = converted(embedding(), f"w{bits}")
        assert torch.allclose(module(TOKENS), naive.per_channel(module.weight, bits)[TOKENS])


def test_a_tied_decoder_reads_the_same_values():
    model = Net()
    bc.quantize_model(model, only=["*"], kernel="simulate")
    bc.set_precision(model, "w3")
    with torch.no_grad():
        model.decoder.bias.zero_()
        read = model.decoder(torch.eye(4)).T  # (5, 4)
        assert torch.allclose(read, model.embed(torch.arange(5)), atol=1e-6)


def test_the_gradient_passes_the_rounding_unchanged():
    module, error = embedding(padding_idx=2), randn(2, 3, 4)
    module(TOKENS).backward(error)
    expected = module.weight.grad.clone()
    module.weight.grad = None
    converted(module)(TOKENS).backward(error)
    assert torch.equal(module.weight.grad, expected)
    assert not module.weight.grad[2].any()


def test_only_the_bits_of_the_weight_matter():
    module = converted(embedding(), "a2e2")
    assert torch.equal(module(TOKENS), embedding()(TOKENS))
    (row,) = bc.audit(module).rows
    assert row.bits == {"weight": "fp32"}
    assert row.is_observed is None


def test_a_bag_adds_rows_up_that_are_on_grids():
    for mode in ("sum", "mean", "max"):
        module = bag(mode)
        bc.set_precision(bc.quantize_model(module, only=[nn.EmbeddingBag]), "w3")
        rows = naive.per_channel(module.weight, 3)[TOKENS]
        expected = rows.amax(1) if mode == "max" else getattr(rows, mode)(1)
        assert torch.allclose(module(TOKENS), expected, atol=1e-6)
        offsets = torch.tensor([0, 3])
        assert torch.allclose(module(TOKENS.flatten(), offsets), expected, atol=1e-6)


def test_a_bag_weighs_its_samples():
    module, weights = bag("sum"), randn(2, 3)
    bc.set_precision(bc.quantize_model(module, only=[nn.EmbeddingBag]), "w3")
    rows = naive.per_channel(module.weight, 3)[TOKENS]
    output = module(TOKENS, per_sample_weights=weights)
    assert torch.allclose(output, (rows * weights.unsqueeze(-1)).sum(1), atol=1e-6)


def test_a_copy_computes_the_same():
    for make in (embedding, bag):
        for duplicate in (copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))):
            module = bc.quantize_model(make(), only=["*"])
            bc.set_precision(module, "w2")
            other = duplicate(module)
            assert type(other) is type(module)
            assert torch.equal(other(TOKENS), module(TOKENS))
            assert not torch.equal(other(TOKENS), make()(TOKENS))


def test_its_state_is_the_float_modules_and_converting_back_is_exact():
    for make in (embedding, bag):
        module = bc.quantize_model(make(), only=["*"])
        bc.set_precision(module, "w2")
        assert list(module.state_dict()) == ["weight"]
        module.load_state_dict(make().state_dict(), strict=True)
        bc.unquantize_model(module)
        assert type(module) is type(make())
        assert vars(module).keys() == vars(make()).keys()
        assert torch.equal(module(TOKENS), make()(TOKENS))


def test_what_cannot_be_converted_is_an_error_with_the_reason():
    for options, reason in (
        ({"sparse": True}, "sparse gradients"),
        ({"max_norm": 1.0}, "max_norm"),
    ):
        with pytest.raises(ValueError, match=f"'0' .*{reason}"):
            bc.quantize_model(nn.Sequential(embedding(**options)), only=["0"])
