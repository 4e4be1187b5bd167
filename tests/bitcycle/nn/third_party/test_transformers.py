"""Attention modules of transformers: converted through that package's registry of functions."""

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.nn.third_party import transformers as transformers_attention
from bitcycle.nn.third_party.transformers import attention, find_layer  # noqa: E402
from tests.bitcycle import naive_attention
from tests.bitcycle.toys import randn

transformers = pytest.importorskip("transformers", reason="needs transformers")


SIZES = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 8, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
TOKENS = torch.arange(14).view(2, 7)
N, H, L, D = 2, 4, 5, 4


def llama(implementation="sdpa"):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, attn_implementation=implementation)
    return transformers.LlamaModel(config)


def layer(bits=4, implementation="sdpa"):
    """A converted attention module that keeps its Linears float."""
    model = llama(implementation)
    quantizer = bc.quantizers.SBM(error_rounding="nearest")
    bc.quantize_model(model, quantizer, only=["layers.?.self_attn"], kernel="simulate")
    module = model.layers[0].self_attn
    bc.quantize_model(model, quantizer, kernel="simulate")
    bc.set_precision(model, "fp32")
    bc.set_precision(model, {"layers.0.self_attn": f"a{bits}e{bits}"})
    return module


def operands(num_groups=2):
    shapes = ((N, H, L, D), (N, H // num_groups, L, D), (N, H // num_groups, L, D))
    return [randn(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]


AHEAD = torch.ones(L, L, dtype=torch.bool).triu(1)
HIDDEN = AHEAD.expand(N, 1, L, L)
MASKS = {
    "bool": (~HIDDEN, HIDDEN),
    "float": (torch.zeros(N, 1, L, L).masked_fill(HIDDEN, torch.finfo().min), HIDDEN),
    "none, causal": (None, HIDDEN),
}


@pytest.mark.parametrize("mask", MASKS)
def test_the_two_products_are_those_of_the_oracle(mask):
    given, hidden = MASKS[mask]
    module, (q, k, v) = layer(), operands()
    ours, weights = attention(module, q, k, v, given, scaling=0.3)
    repeated = [x.repeat_interleave(2, dim=1) for x in (k, v)]
    theirs, shares = naive_attention.attention(q, *repeated, hidden, 0.3, 4)
    theirs = theirs.transpose(1, 2)
    assert torch.allclose(weights, shares, atol=1e-6)
    error = randn(*ours.shape, seed=5)
    for a, b in zip(
        [ours, *torch.autograd.grad(ours, (q, k, v), error)],
        [theirs, *torch.autograd.grad(theirs, (q, k, v), error)],
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-5 * b.abs().max().item())


@pytest.mark.parametrize(
    ("implementation", "options", "is_causal"),
    [("sdpa", {}, True), ("sdpa", {"is_causal": False}, False), ("eager", {}, False)],
)
def test_a_missing_mask_means_what_it_means_to_the_former_function(
    implementation, options, is_causal
):
    weights = attention(layer(8, implementation), *operands(), None, **options)[1]
    assert weights[..., AHEAD].any() != is_causal


def test_one_query_sees_every_key():
    q, k, v = operands()
    assert (attention(layer(8), q[:, :, :1], k, v, None)[1] > 0).all()


def test_a_bias_of_positions_and_a_cap_are_applied():
    module, (q, k, v), bias = layer(16), operands(), randn(1, H, L, L, seed=7)
    k_all = k.repeat_interleave(2, dim=1)
    _, weights = attention(
        module, q, k, v, None, scaling=1.0, softcap=2.0, position_bias=bias, is_causal=False
    )
    scores = 2.0 * torch.tanh(q @ k_all.transpose(-1, -2) / 2.0) + bias
    assert torch.allclose(weights, scores.softmax(-1), atol=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"s_aux": torch.zeros(H)}, "attention sinks"), ({"cache": object()}, "a paged cache")],
)
def test_what_it_cannot_do_is_an_error_with_a_way_out(options, words):
    with pytest.raises(ValueError, match=f"self_attn' .*{words} at a4e4"):
        attention(layer(), *operands(), None, **options)


def test_a_mask_of_another_kind_of_attention_is_an_error():
    with pytest.raises(ValueError, match="mask"):
        attention(layer(), *operands(), torch.ones(N, L))


def test_the_function_is_for_converted_models():
    with pytest.raises(ValueError, match="LlamaAttention"):
        attention(llama().layers[0].self_attn, *operands(), None)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_without_bits_the_former_function_runs_and_with_bits_ours(implementation, monkeypatch):
    module = layer(implementation=implementation)
    assert module.config._attn_implementation == transformers_attention.NAME
    assert module.config.hidden_size == 16
    bc.set_precision(module, "fp32")
    assert module.config is vars(module)["config"]
    assert module.config._attn_implementation == implementation


def test_the_models_config_is_not_touched():
    model = llama()
    before = model.config.to_dict()
    bc.set_precision(bc.quantize_model(model), "FW4/BW8")
    assert model.config._attn_implementation == "sdpa"
    assert model.config.to_dict() == before


def test_dropout_is_for_training():
    module = layer(8)
    weights = attention(module.train(), *operands(), None, dropout=0.9)[1]
    assert (weights[..., ~AHEAD] == 0).any()
    weights = attention(module.eval(), *operands(), None, dropout=0.9)[1]
    assert (weights[..., ~AHEAD] > 0).all()


def test_ranges_are_in_the_state_dict_and_decide_the_evaluation():
    model = bc.quantize_model(llama())
    bc.set_precision(model, "FW4/BW8")
    model(TOKENS)
    state = model.state_dict()
    assert state["layers.0.self_attn.act_range"].shape == (4, 3)
    assert (state["layers.0.self_attn.act_range"][:, 0] == 1).all()
    other = bc.quantize_model(llama())
    bc.set_precision(other, "FW4/BW8")
    other.load_state_dict(state, strict=True)
    expected = model.eval()(TOKENS).last_hidden_state
    assert torch.equal(other.eval()(TOKENS).last_hidden_state, expected)


def test_attention_weights_are_returned_when_they_are_asked_for():
    model = bc.quantize_model(llama("eager"))
    bc.set_precision(model, "FW8/BW8")
    (weights,) = model(TOKENS, output_attentions=True).attentions
    assert weights.shape == (2, 4, 7, 7)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: setattr(m.config, "_attn_implementation", "flex_attention"), "'flex_attention'"),
        (lambda m: setattr(m, "sinks", torch.zeros(4)), "attention sinks are not supported"),
        (lambda m: m.__dict__.pop("config"), "no config of its own"),
    ],
)
def test_what_stays_float_has_a_reason_in_the_audit(change, reason):
    model = llama()
    change(model.layers[0].self_attn)
    bc.quantize_model(model)
    row = bc.audit(model)["layers.0.self_attn"]
    assert not row.is_converted
    assert reason in row.reason
    assert bc.audit(model)["layers.0.self_attn.q_proj"].is_converted


def test_the_products_of_an_attention_can_be_left_float():
    model = bc.quantize_model(llama(), skip=["*.self_attn"])
    left = [row.name for row in bc.audit(model, TOKENS).float_rows if row.multiplies]
    assert left == ["layers.0.self_attn"]


def test_other_types_of_the_package_have_no_layer():
    assert find_layer(type(llama().layers[0].self_attn)) is not None
    assert find_layer(transformers.LlamaModel) is None
    assert find_layer(torch.nn.Identity) is None


pytorch_utils = pytest.importorskip("transformers.pytorch_utils", reason="needs transformers")


def pair(precision):
    """A converted Conv1D and the nn.Linear with the same parameters."""
    torch.manual_seed(0)
    module, linear = pytorch_utils.Conv1D(6, 4), nn.Linear(4, 6)
    with torch.no_grad():
        module.weight.copy_(linear.weight.t())
        module.bias.copy_(linear.bias)
    for layer in (module, linear):
        bc.quantize_model(layer, bc.quantizers.SBM(error_rounding="nearest"), kernel="simulate")
        bc.set_precision(layer, precision)
    return module, linear


def test_it_computes_what_a_linear_layer_with_the_same_weight_does():
    for precision in ("w3a3e3", "w8a8e8", "w2", "e4"):
        module, linear = pair(precision)
        results = []
        for layer in (module, linear):
            x = randn(2, 3, 4).requires_grad_()
            output = layer(x)
            grads = torch.autograd.grad(
                output, (x, layer.weight, layer.bias), randn(2, 3, 6, seed=2)
            )
            results.append([output, *grads])
        results[0][2] = results[0][2].t()
        for ours, theirs in zip(*results, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)
