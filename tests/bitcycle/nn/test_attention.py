"""The two products of an attention, and nn.MultiheadAttention with all its options."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bitcycle as bc
from bitcycle.kernels import native
from bitcycle.memory import saved_bytes
from bitcycle.nn import attention
from bitcycle.nn.attention import NUM_RANGES, attend
from bitcycle.nn.control import CALL
from tests.bitcycle import naive_attention
from tests.bitcycle.nn.layers import encoded
from tests.bitcycle.toys import randn


def owner(bits, num_ranges=NUM_RANGES, kernel="simulate"):
    """A converted layer with room for the ranges."""
    rules = bc.quantizers.SBM(error_rounding="nearest")
    layer = bc.quantize_model(bc.MatMul(), rules, kernel=kernel)
    layer.act_range = torch.zeros(num_ranges, 3)
    bc.set_precision(layer, f"a{bits}e{bits}")
    assert type(layer).float_type is bc.MatMul
    return layer


def operands():
    return [randn(2, 3, n, 4, seed=i).requires_grad_() for i, n in enumerate((5, 6, 6))]


def test_output_and_gradients_are_those_of_the_oracle():
    for bits in (2, 4, 8):
        q, k, v = operands()
        hidden = torch.zeros(5, 6, dtype=torch.bool)
        hidden[1, 2:] = True
        mask = torch.zeros(5, 6).masked_fill(hidden, -torch.inf)
        ours, weights = attend(owner(bits), q, k, v, mask, scale=0.5)
        theirs, shares = naive_attention.attention(q, k, v, hidden, 0.5, bits)
        assert torch.allclose(weights, shares, atol=1e-6)
        error = randn(*ours.shape, seed=4)
        for a, b in zip(
            [ours, *torch.autograd.grad(ours, (q, k, v), error)],
            [theirs, *torch.autograd.grad(theirs, (q, k, v), error)],
            strict=True,
        ):
            assert torch.allclose(a, b, atol=1e-5 * b.abs().max().item())


def test_a_cap_bounds_the_scores_before_the_mask():
    q, k, v = (10 * x.detach() for x in operands())
    mask = torch.zeros(5, 6)
    mask[:, 3:] = -torch.inf
    _, weights = attend(owner(8), q, k, v, mask, scale=1.0, softcap=1.0)
    assert not weights[..., 3:].any()
    assert weights[..., :3].min() >= 1 / (1 + 2 * torch.e**2) - 1e-6  # scores within -1 and 1


def test_ranges_are_kept_from_the_given_row_on():
    layer = owner(4, num_ranges=2 + NUM_RANGES)
    q, k, v = operands()
    attend(layer, q, k, v, None, scale=1.0, act_row=2)
    assert layer.act_range[:, 0].tolist() == [0, 0, 1, 1, 1, 1]
    assert layer.act_range[5, 1] == v.min()


def _gradients(bits, mask, *, is_kept, monkeypatch, **options):
    """Of q, k, v and the mask; is_kept: with the weights kept for backward, as autograd does."""
    with monkeypatch.context() as patch:
        if is_kept:
            patch.setattr(attention, "product_node", lambda output: None)
        inputs = [*operands(), *([] if mask is None else [mask])]
        q, k, v = inputs[:3]
        torch.manual_seed(0)
        output, _ = attend(owner(bits, kernel="native"), q, k, v, mask, scale=0.5, **options)
        error = randn(*output.shape, seed=4)
        first = torch.autograd.grad(output, inputs, error, retain_graph=True)
        again = torch.autograd.grad(output, inputs, error)
    assert all(map(torch.equal, first, again))
    return first


@pytest.mark.parametrize("bits", [4, 7])
@pytest.mark.parametrize("has_library", [True, False])
def test_weights_made_again_from_codes_give_the_same_gradients(has_library, bits, monkeypatch):
    monkeypatch.setattr(native, "HAS_LIBRARY", native.HAS_LIBRARY and has_library)
    for options in ({}, {"softcap": 1.0}, {"dropout": 0.3}):
        for has_mask in (False, True):
            mask = randn(1, 3, 1, 6, seed=9).requires_grad_() if has_mask else None
            ours, theirs = (
                _gradients(bits, mask, is_kept=is_kept, monkeypatch=monkeypatch, **options)
                for is_kept in (False, True)
            )
            assert all(map(torch.equal, ours, theirs))


def test_gradients_of_some_inputs_are_those_of_all_also_before_them():
    for asked in (["mask"], ["v"], ["q"], ["k", "mask"]):
        mask = randn(1, 3, 1, 6, seed=9).requires_grad_()
        inputs = dict(zip("qkv", operands(), strict=True), mask=mask)
        output, _ = attend(owner(7, kernel="native"), *inputs.values(), scale=0.5)
        error = randn(*output.shape, seed=4)
        some = torch.autograd.grad(output, [inputs[n] for n in asked], error, retain_graph=True)
        every = dict(
            zip(inputs, torch.autograd.grad(output, [*inputs.values()], error), strict=True)
        )
        for name, gradient in zip(asked, some, strict=True):
            assert torch.equal(gradient, every[name])


def test_the_product_of_scores_is_made_again_only_where_both_operands_are_kept(monkeypatch):
    made = []
    again = attention.recompute_output
    monkeypatch.setattr(
        attention, "recompute_output", lambda node: made.append(node) or again(node)
    )
    q, k, v = operands()
    for layer, inputs, expected in (
        (owner(7, kernel="native"), (q, k, v), 1),
        (owner(7, kernel="native"), (q.detach(), k, v), 0),  # nobody reads k's codes
        (owner(7, kernel="simulate"), (q, k, v), 0),
    ):
        made.clear()
        attend(layer, *inputs, None, scale=1.0)[0].sum().backward()
        assert len(made) == expected


def test_a_codes_kernel_keeps_no_attention_weights_for_backward():
    q, k, v = (randn(1, 1, 64, 4, seed=i).requires_grad_() for i in range(3))
    weights = 4 * 64 * 64  # bytes
    kept = {
        kernel: saved_bytes(
            owner(8, kernel=kernel),
            lambda layer: attend(layer, q, k, v, None, scale=1.0)[0],
            exclude=(q, k, v),
        ).num_bytes
        for kernel in ("simulate", "native")
    }
    assert kept["simulate"] > 2 * weights  # as a float, and put on its grid
    assert weights / 4 < kept["native"] < weights / 2  # its codes, and those of q, k and v


BITS = 4
OPTIONS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "other widths": {"kdim": 6, "vdim": 5},
    "other widths, no bias": {"kdim": 6, "vdim": 5, "bias": False},
    "rows appended": {"add_bias_kv": True, "add_zero_attn": True},
    "zeros appended": {"add_zero_attn": True, "batch_first": True},
}
N, L, S, E, H = 3, 4, 5, 8, 2


def layer(**options):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(E, H, **options)
    for parameter in module.parameters():  # biases start at zero
        nn.init.normal_(parameter, std=0.5)
    return module


def inputs(module):
    """query, key and value as (N, length, features)."""
    widths = ((L, E), (S, module.kdim), (S, module.vdim))
    return [randn(N, length, width, seed=i) for i, (length, width) in enumerate(widths)]


def converted(module, bits=BITS, **options):
    quantizer = bc.quantizers.SBM(error_rounding="nearest")
    bc.quantize_model(module, quantizer, kernel="simulate", **options)
    bc.set_precision(module, f"w{bits}a{bits}e{bits}")
    return module


def call(module, tensors, **masks):
    """The layer on batches that come first; the output likewise."""
    if module.batch_first:
        return module(*tensors, **masks)
    output, weights = module(*(x.transpose(0, 1) for x in tensors), **masks)
    return output.transpose(0, 1), weights


def run(function, module, tensors):
    """Output and the gradients of inputs and parameters."""
    tensors = [x.clone().requires_grad_() for x in tensors]
    output = function(module, tensors)
    leaves = [*tensors, *module.parameters()]
    return [output, *torch.autograd.grad(output, leaves, randn(*output.shape, seed=9))]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_its_products_are_those_of_the_oracle(options):
    for bits in (3, 8):
        module = layer(**options)
        tensors = inputs(module)
        theirs = run(lambda m, x, b=bits: naive_attention.multihead(m, *x, b)[0], module, tensors)
        ours = run(lambda m, x: call(m, x)[0], converted(module, bits), tensors)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.allclose(a, b, atol=1e-4 * b.abs().max().item())


def masks():
    """Options of a call, and which scores they hide: (N or 1, H or 1, L or 1, S)."""
    ahead = torch.ones(L, S, dtype=torch.bool).triu(1)
    heads = torch.rand(N * H, L, S, generator=torch.Generator().manual_seed(0)) > 0.7
    padding = torch.zeros(N, S, dtype=torch.bool)
    padding[0, 3:] = padding[1, 4:] = True
    floats = torch.zeros(L, S).masked_fill(ahead, -torch.inf)
    both = ahead | padding.view(N, 1, 1, S)
    return {
        "none": ({}, None),
        "attn_mask": ({"attn_mask": ahead}, ahead),
        "attn_mask of floats": ({"attn_mask": floats}, ahead),
        "attn_mask per head": ({"attn_mask": heads}, heads.view(N, H, L, S)),
        "key_padding_mask": ({"key_padding_mask": padding}, padding.view(N, 1, 1, S)),
        "both": ({"attn_mask": ahead, "key_padding_mask": padding}, both),
        "is_causal": ({"attn_mask": ahead, "is_causal": True}, ahead),
    }


@pytest.mark.parametrize("name", masks())
def test_masks_hide_what_they_hide_in_the_float_layer(name):
    for need_weights in (True, False):
        for options in ("plain", "rows appended"):
            given, is_hidden = masks()[name]
            module = layer(**OPTIONS[options])
            if name == "is_causal" and not need_weights and module.add_zero_attn:
                is_hidden = torch.ones(L, S + 2, dtype=torch.bool).triu(1)  # so in the float layer
            tensors = inputs(module)
            float_output, float_weights = call(module, tensors, need_weights=need_weights, **given)
            expected, shares = naive_attention.multihead(module, *tensors, BITS, is_hidden)
            output, weights = call(converted(module), tensors, need_weights=need_weights, **given)
            assert torch.allclose(output, expected, atol=1e-4)
            assert (weights is None) == (float_weights is None) == (not need_weights)
            if need_weights:
                assert weights.shape == float_weights.shape
                assert torch.allclose(weights, shares.mean(1), atol=1e-5)
                assert torch.equal(weights == 0, float_weights == 0)
            bc.set_precision(module, "w16a16e16")
            near, _ = call(module, tensors, need_weights=need_weights, **given)
            assert torch.allclose(near, float_output, atol=1e-3)


def test_the_weights_of_every_head_are_returned_on_demand():
    module = converted(layer(batch_first=True))
    tensors = inputs(module)
    weights = module(*tensors, average_attn_weights=False)[1]
    assert weights.shape == (N, H, L, S)
    assert torch.allclose(weights.mean(1), module(*tensors)[1])


def test_a_single_sequence_is_a_batch_of_one():
    module = converted(layer())
    query, key, value = (x[:1] for x in inputs(module))
    hidden = torch.tensor([False, False, True, False, True])
    output, weights = module(query[0], key[0], value[0], key_padding_mask=hidden)
    batch, shares = call(module, (query, key, value), key_padding_mask=hidden[None])
    assert torch.equal(output, batch[0])
    assert torch.equal(weights, shares[0])


def test_a_query_that_may_look_at_nothing_gets_zeros_and_spoils_no_range():
    module = converted(layer())
    tensors = inputs(module)
    nothing = torch.zeros(N, S, dtype=torch.bool)
    nothing[1] = True
    output, weights = call(module, tensors, key_padding_mask=nothing)
    assert output.isfinite().all()
    assert not weights[1].any()
    output.sum().backward()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_dropout_hides_weights_in_training_only():
    module = converted(layer(dropout=0.5))
    tensors = inputs(module)
    torch.manual_seed(3)
    weights = call(module, tensors)[1]
    assert (weights == 0).any()
    assert (call(module.eval(), tensors)[1] > 0).all()


def test_evaluation_computes_what_training_does_at_the_same_ranges():
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        for need_weights in (True, False):
            module = converted(layer(batch_first=True))
            x = randn(N, L, E)
            trained = module(x, x, x, need_weights=need_weights)[0]
            with mode():
                assert torch.equal(module.eval()(x, x, x, need_weights=need_weights)[0], trained)


def test_every_product_keeps_a_range_of_its_own():
    module = converted(layer(batch_first=True))
    query, key, value = inputs(module)
    module(query, 2 * key, 3 * value)
    _, lows, ranges = module.act_range.T
    for row, x in enumerate((query, 2 * key, 3 * value)):
        assert torch.allclose(lows[row], x.min())
        assert torch.allclose(ranges[row], x.max() - x.min())
    assert lows[5] >= 0  # attention weights
    assert (lows + ranges)[5] <= 1
    assert len(lows) == 8


def test_its_products_take_noise_of_their_own():
    module = bc.quantize_model(layer(batch_first=True), kernel="simulate")
    bc.set_precision(module, "e2")
    x = randn(N, L, E)
    with torch.no_grad():  # the same weights, inputs and errors for keys and values
        module.in_proj_weight[E : 2 * E] = module.in_proj_weight[:E]
    x = x.requires_grad_()
    first = module._project(x, module.in_proj_weight[:E], None, 0)
    module.control[CALL] -= 1  # the same call, as when a checkpoint computes it again
    second = module._project(x, module.in_proj_weight[:E], None, 1)
    error = randn(*first.shape)
    grads = [torch.autograd.grad(y, x, error)[0] for y in (first, second)]
    assert not torch.equal(*grads)


def test_native_agrees_with_the_simulation():
    results = []
    for name in ("simulate", "native"):
        module = layer(batch_first=True)
        quantizer = bc.quantizers.SBM(error_rounding="nearest")
        bc.set_precision(bc.quantize_model(module, quantizer, kernel=name), "w8a8e8")
        results.append(run(lambda m, x: call(m, x)[0], module, inputs(module)))
    for ours, theirs in zip(*results, strict=True):  # values may fall on the next level
        assert (ours - theirs).norm() <= 0.05 * theirs.norm()


@pytest.mark.slow
def test_it_compiles_to_one_graph():
    module = converted(layer(batch_first=True))
    x = randn(N, L, E)
    module(x, x, x)
    module.eval()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x, x, x)[0], module(x, x, x)[0], atol=1e-6)


def test_a_checkpointed_layer_has_the_same_gradients():
    for kernel in ("simulate", "native"):
        for reentrant in (False, True):
            results = []
            for is_checkpointed in (False, True):
                module = bc.quantize_model(layer(batch_first=True), kernel=kernel)
                bc.set_precision(module, "w4a4e4")  # stochastic errors
                x = randn(N, L, E).requires_grad_()
                if is_checkpointed:
                    output, _ = checkpoint(lambda x: module(x, x, x), x, use_reentrant=reentrant)  # noqa: B023
                else:
                    output, _ = module(x, x, x)
                output.sum().backward()
                results.append([x.grad, *(p.grad for p in module.parameters())])
                assert module.act_range[:, 0].tolist() == [1] * 8
            assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_an_error_that_names_the_way_out():
    module = converted(layer(batch_first=True)).eval()
    x = torch.nested.nested_tensor([randn(2, E), randn(3, E)])
    with pytest.raises(ValueError, match="nested tensor at w4a4e4"):
        module(x, x, x)


def test_the_causal_hint_needs_its_mask():
    module = converted(layer())
    with pytest.raises(ValueError, match="attn_mask"):
        call(module, inputs(module), is_causal=True)


def decoder_layer():
    torch.manual_seed(0)
    return nn.TransformerDecoderLayer(E, H, 12, dropout=0.0, batch_first=True)


def test_both_attentions_of_a_decoder_layer_follow_their_bits():
    module = converted(decoder_layer())
    assert len(bc.audit(module, (randn(N, L, E), randn(N, S, E))).rows) == 4
    assert not bc.audit(module).float_rows
    x, memory = randn(N, L, E), randn(N, S, E, seed=2)
    attended = naive_attention.multihead(module.self_attn, x, x, x, BITS)[0]
    y = module.norm1(x + attended)
    attended = naive_attention.multihead(module.multihead_attn, y, memory, memory, BITS)[0]
    y = module.norm2(y + attended)
    hidden = naive_attention.linear(y, module.linear1.weight, module.linear1.bias, BITS).relu()
    y = y + naive_attention.linear(hidden, module.linear2.weight, module.linear2.bias, BITS)
    assert torch.allclose(module(x, memory), module.norm3(y), atol=1e-4)


@pytest.mark.parametrize("grids", ["shared", "per_input_channel"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_one_tensor_that_is_query_key_and_value_is_put_on_its_grid_once(batch_first, grids):
    module = nn.MultiheadAttention(8, 2, batch_first=batch_first)
    bc.quantize_model(module, bc.quantizers.SBM(grad_input_weight=grids), kernel="native")
    bc.set_precision(module, "w8a8")
    x = torch.randn(3, 4, 8, requires_grad=True) * 1
    with encoded() as roles:
        module(x, x, x, need_weights=False)
    assert roles.count("act") == 1 + 4 + 1  # the input, two attention products, their result
