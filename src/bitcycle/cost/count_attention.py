"""Products of nn.MultiheadAttention: four projections, and the two of the attention itself."""

from __future__ import annotations

from torch import Tensor

from bitcycle.cost.product import COUNTERS, Call, Product, UncountedError, layer_products


@COUNTERS.register("torch.nn.modules.activation.MultiheadAttention")
def count_attention(call: Call) -> list[Product]:
    """N (L E E + S kdim E + S vdim E) + 2 N L S' E + N L E E MACs.

    L queries and S keys of N sequences at width E; S' counts the rows that add_bias_kv and
    add_zero_attn append. What a fused backward pass computes again is not counted.
    """
    module = call.module
    query, key, value = (call.argument(i, n) for i, n in enumerate(("query", "key", "value")))
    if query.is_nested:
        raise UncountedError("a nested tensor")
    width = module.embed_dim  # E
    weights = _projection_weights(call)
    products, is_differentiated = [], []
    for x, weight in zip((query, key, value), weights, strict=True):
        products += _projection(call, x, weight, width, needs_input=call.needs(x))
        is_differentiated.append(call.needs(x, weight, module.in_proj_bias))
    q, k, v = is_differentiated
    num, length = _sequences(query, module.batch_first)
    num_keys = _sequences(key, module.batch_first)[1]
    num_keys += (module.bias_k is not None) + module.add_zero_attn  # S'
    rows, columns = num * length * width, num * num_keys * width  # elements of q, and of k or v
    scores = num * module.num_heads * length * num_keys
    macs = num * length * num_keys * width
    products += layer_products(
        macs, act=rows, second=columns, error=scores, second_role="act",
        has_grad_input=q, has_grad_weight=k,
    )  # fmt: skip
    products += layer_products(
        macs, act=scores, second=columns, error=rows, second_role="act",
        has_grad_input=q or k, has_grad_weight=v,
    )  # fmt: skip
    out = module.out_proj.weight
    products += layer_products(
        num * length * out.numel(), act=rows, second=out.numel(), error=rows,
        has_grad_input=q or k or v, has_grad_weight=call.needs(out),
    )  # fmt: skip
    return products


def _projection_weights(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    module = call.module
    if module._qkv_same_embed_dim:
        q, k, v = module.in_proj_weight.chunk(3)
        return q, k, v
    return module.q_proj_weight, module.k_proj_weight, module.v_proj_weight


def _projection(
    call: Call, x: Tensor, weight: Tensor, width: int, *, needs_input: bool
) -> list[Product]:
    num_rows = x.numel() // x.shape[-1]
    return layer_products(
        num_rows * weight.numel(),
        act=x.numel(),
        second=weight.numel(),
        error=num_rows * width,
        has_grad_input=needs_input,
        has_grad_weight=call.needs(weight),
    )


def _sequences(x: Tensor, batch_first: bool) -> tuple[int, int]:
    """(N, length) of (N, length, E), (length, N, E) or (length, E)."""
    if x.dim() == 2:
        return 1, x.shape[0]
    return (x.shape[0], x.shape[1]) if batch_first else (x.shape[1], x.shape[0])
