"""Count the MACs of a layer's products, with one counter per layer type.

A counter is a function from one call of a layer to its products (`Product`: a matmul, the roles of
its operands, its MACs). It is registered in `COUNTERS` under the qualified name of the float type,
and serves subclasses and converted layers too. A new layer type needs one more counter, in this
file. `cost/trace.py` calls the counters. `Product.bitops` is MACs x bits x bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from bitcycle.kernels.base import MATMULS
from bitcycle.nn.class_swap import qualified_name
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.registry import Registry

OPERANDS = ("weight", "act", "error")  # the roles that are multiplied
FIXED = "fixed"  # always float32: the coefficients of a graph's edges
ONES = "ones"  # edges without coefficients, one bit each: a MAC is an addition
_UNKNOWN = "aggregation over edges"
_SUMS = ("add", "sum", "mean")


@dataclass(frozen=True, kw_only=True)
class Product:
    """One matmul of a layer over the traced batch: its MACs, and the elements of its operands.

    >>> p = Product(matmul="output", roles=("act", "weight"), macs=32, elements=(8, 4))
    >>> p.bitops({"act": 3, "weight": 4}), p.traffic({"act": 3, "weight": 4})
    (384, (24, 16))
    """

    matmul: str
    roles: tuple[str, str]
    macs: int
    elements: tuple[int, int]  # read from each operand

    def bitops(self, bits: Mapping[str, int]) -> int:
        """MACs x bits(a) x bits(b)."""
        a, b = self.roles
        return self.macs * bits[a] * bits[b]

    def traffic(self, bits: Mapping[str, int]) -> tuple[int, int]:
        """Operand bits read: of activations and errors, and of weights."""
        by_kind = [0, 0]
        for role, num_elements in zip(self.roles, self.elements, strict=True):
            by_kind[role == "weight"] += num_elements * bits[role]
        return by_kind[0], by_kind[1]


def layer_products(
    macs: int,
    *,
    act: int,
    second: int,
    error: int,
    has_grad_input: bool,
    has_grad_weight: bool,
    second_role: str = "weight",
) -> list[Product]:
    """The matmuls of a layer that multiplies act by a second operand, mostly its weight.

    output = act x second, grad_input = error x second, grad_weight = error x act. The error is the
    gradient with respect to the output. All three have the same MACs, since each sums over another
    dimension of the same index space. act, second, error: the elements of the tensors. If the
    second operand is an activation too, second_role is "act" and grad_weight is its gradient.
    """
    products = [("output", ("act", second_role), (act, second))]
    if has_grad_input:
        products.append(("grad_input", ("error", second_role), (error, second)))
    if has_grad_weight:
        products.append(("grad_weight", ("error", "act"), (error, act)))
    return [Product(matmul=m, roles=r, macs=macs, elements=e) for m, r, e in products]


def add_up(products: Iterable[Product]) -> tuple[Product, ...]:
    """Sum the products of the same matmul and roles, in the order of MATMULS."""
    sums: dict[tuple[str, tuple[str, str]], tuple[int, int, int]] = {}
    for p in products:
        macs, a, b = sums.get((p.matmul, p.roles), (0, 0, 0))
        sums[p.matmul, p.roles] = macs + p.macs, a + p.elements[0], b + p.elements[1]
    return tuple(
        Product(matmul=matmul, roles=roles, macs=macs, elements=(a, b))
        for (matmul, roles), (macs, a, b) in sorted(
            sums.items(), key=lambda item: MATMULS.index(item[0][0])
        )
    )


class UncountedError(Exception):
    """A counter raises this for a call that it cannot count, with the reason."""


@dataclass(frozen=True)
class Call:
    """One call of a module, as its forward hook receives it."""

    module: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any

    def optional(self, index: int, name: str) -> Any:
        """An argument by position or name; None if it was not passed."""
        return self.args[index] if index < len(self.args) else self.kwargs.get(name)

    def argument(self, index: int, name: str) -> Any:
        """An argument by position or name; an UncountedError if it was not passed."""
        value = self.optional(index, name)
        if value is None:
            raise UncountedError(f"called without {name!r}")
        return value

    @property
    def result(self) -> Tensor:
        """The output, if it is one tensor; otherwise an UncountedError."""
        if not isinstance(self.output, Tensor):
            raise UncountedError(f"returns a {type(self.output).__name__}")
        return self.output

    @cached_property
    def has_graph(self) -> bool:
        """Whether any output has a graph."""
        leaves = tree_leaves(self.output)
        return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves)

    def needs(self, *tensors: Tensor | None) -> bool:
        """Whether the backward pass computes a gradient for any of these tensors."""
        return self.has_graph and any(t is not None and t.requires_grad for t in tensors)


MacCounter = Callable[[Call], list[Product]]
COUNTERS: Registry[MacCounter] = Registry("MAC counter", "bitcycle.cost")


def find_counter(kind: type[nn.Module]) -> tuple[type[nn.Module], MacCounter] | None:
    """The counter of a type or of its nearest base class, with the class that has it.

    >>> class MyLinear(nn.Linear): ...
    >>> base, counter = find_counter(MyLinear)
    >>> base.__name__, counter.__name__
    ('Linear', 'count_linear')
    """
    for base in kind.__mro__:
        if (name := qualified_name(base)) in COUNTERS:
            return base, COUNTERS[name]
    return None


# -- linear and convolution -----------------------------------------------------------------------


@COUNTERS.register("torch.nn.modules.linear.Linear")
def count_linear(call: Call) -> list[Product]:
    """(..., in) x (in, out): every output element sums over in, so elements(output) x in MACs."""
    x: Tensor = call.argument(0, "input")
    return with_weight(call, x, call.result.numel() * x.shape[-1])


@COUNTERS.register("transformers.pytorch_utils.Conv1D")
@COUNTERS.register("torch_geometric.nn.dense.linear.Linear")
def count_linear_of_x(call: Call) -> list[Product]:
    """A linear layer whose argument is called x: elements(output) x in MACs."""
    x: Tensor = call.argument(0, "x")
    return with_weight(call, x, call.result.numel() * x.shape[-1])


@COUNTERS.register("torch.nn.modules.conv.Conv1d")
@COUNTERS.register("torch.nn.modules.conv.Conv2d")
@COUNTERS.register("torch.nn.modules.conv.Conv3d")
def count_convolution(call: Call) -> list[Product]:
    """elements(output) x Cin / groups x kernel MACs, with the taps on padding."""
    taps = call.module.weight.numel() // call.module.out_channels  # (Cout, Cin / groups, *kernel)
    return with_weight(call, call.argument(0, "input"), call.result.numel() * taps)


@COUNTERS.register("torch.nn.modules.conv.ConvTranspose1d")
@COUNTERS.register("torch.nn.modules.conv.ConvTranspose2d")
@COUNTERS.register("torch.nn.modules.conv.ConvTranspose3d")
def count_transposed_convolution(call: Call) -> list[Product]:
    """elements(input) x Cout / groups x kernel MACs: each input element is spread over these."""
    x: Tensor = call.argument(0, "input")
    taps = call.module.weight.numel() // call.module.in_channels  # (Cin, Cout / groups, *kernel)
    return with_weight(call, x, x.numel() * taps)


def with_weight(call: Call, x: Tensor, macs: int) -> list[Product]:
    """The products of x and the module's one weight."""
    weight: Tensor = call.module.weight
    return layer_products(
        macs,
        act=x.numel(),
        second=weight.numel(),
        error=call.result.numel(),
        has_grad_input=call.needs(x),
        has_grad_weight=call.needs(weight),
    )


@COUNTERS.register("bitcycle.matmul.MatMul")
def count_matmul(call: Call) -> list[Product]:
    """(..., M, K) x (..., K, N): elements(output) x K MACs; both operands are activations."""
    a: Tensor = call.argument(0, "a")
    b: Tensor = call.argument(1, "b")
    return layer_products(
        call.result.numel() * a.shape[-1],
        act=a.numel(),
        second=b.numel(),
        error=call.result.numel(),
        has_grad_input=call.needs(a),
        has_grad_weight=call.needs(b),
        second_role="act",
    )


@COUNTERS.register("torch.nn.modules.linear.Bilinear")
def count_bilinear(call: Call) -> list[Product]:
    """y_o = x1' W_o x2 as two products: v = W x2 (N o i j MACs), then y = v x1 (N o i MACs)."""
    x1: Tensor = call.argument(0, "input1")
    x2: Tensor = call.argument(1, "input2")
    weight: Tensor = call.module.weight  # (o, i, j)
    num_outputs = call.result.numel()  # N o
    v = num_outputs * x1.shape[-1]  # elements of v: N o i
    first = layer_products(
        v * x2.shape[-1],
        act=x2.numel(),
        second=weight.numel(),
        error=v,
        has_grad_input=call.needs(x2),
        has_grad_weight=call.needs(weight),
    )
    return first + layer_products(
        v,
        act=x1.numel(),
        second=v,
        error=num_outputs,
        has_grad_input=call.needs(x1),
        has_grad_weight=call.needs(x2, weight),
        second_role="act",
    )


# -- attention ------------------------------------------------------------------------------------


@COUNTERS.register("torch.nn.modules.activation.MultiheadAttention")
def count_attention(call: Call) -> list[Product]:
    """N (L E E + S kdim E + S vdim E) + 2 N L S' E + N L E E MACs.

    L queries and S keys of N sequences at width E; S' counts the rows that add_bias_kv and
    add_zero_attn append. Products that a fused backward pass recomputes are not counted.
    """
    module = call.module
    query, key, value = (call.argument(i, n) for i, n in enumerate(("query", "key", "value")))
    if query.is_nested:
        raise UncountedError("a nested tensor")
    width = module.embed_dim  # E
    weights = _projection_weights(call)
    products, is_differentiated = [], []
    for x, weight in zip((query, key, value), weights, strict=True):
        products += _attention_projection(call, x, weight, width, needs_input=call.needs(x))
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


def _attention_projection(
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


# -- recurrent ------------------------------------------------------------------------------------


@COUNTERS.register("torch.nn.modules.rnn.RNN")
@COUNTERS.register("torch.nn.modules.rnn.LSTM")
@COUNTERS.register("torch.nn.modules.rnn.GRU")
def count_recurrent(call: Call) -> list[Product]:
    """All time steps of all layers. The initial state has a gradient only if h_0 does."""
    module = call.module
    x: Tensor | PackedSequence = call.argument(0, "input")
    length, num_rows, num_starts = _sizes(module, x)
    states = call.optional(1, "hx")
    h0: Tensor | None = states[0] if isinstance(states, tuple) else states
    has_grad_input = call.needs(x.data if isinstance(x, PackedSequence) else x)
    products = []
    for layer in range(module.num_layers):
        for suffix in ("", "_reverse")[: 1 + module.bidirectional]:
            w_ih, w_hh = (getattr(module, f"weight_{k}_l{layer}{suffix}") for k in ("ih", "hh"))
            products += _step_products(call, w_ih, num_rows, 1, has_grad_input)
            products += _step_products(call, w_hh, num_starts, 1, call.needs(h0))
            products += _step_products(
                call, w_hh, num_rows - num_starts, length - 1, call.has_graph
            )
            if module.proj_size:
                w_hr = getattr(module, f"weight_hr_l{layer}{suffix}")
                products += _step_products(call, w_hr, num_rows, length, call.has_graph)
        has_grad_input = call.has_graph
    return products


def _sizes(module: Any, x: Tensor | PackedSequence) -> tuple[int, int, int]:
    """Time steps, rows over all of them (N x T without packing), and rows of the first."""
    if isinstance(x, PackedSequence):
        return len(x.batch_sizes), x.data.shape[0], int(x.batch_sizes[0])
    if x.is_nested:
        raise UncountedError("a nested tensor")
    if x.dim() == 2:  # one sequence without N
        return x.shape[0], x.shape[0], 1
    num, length = x.shape[:2] if module.batch_first else (x.shape[1], x.shape[0])
    return length, length * num, num


@COUNTERS.register("torch.nn.modules.rnn.RNNCell")
@COUNTERS.register("torch.nn.modules.rnn.LSTMCell")
@COUNTERS.register("torch.nn.modules.rnn.GRUCell")
def count_cell(call: Call) -> list[Product]:
    """One time step of one layer."""
    module = call.module
    x: Tensor = call.argument(0, "input")
    states = call.optional(1, "hx")
    h: Tensor | None = states[0] if isinstance(states, tuple) else states
    num_rows = x.numel() // x.shape[-1]
    return [
        *_step_products(call, module.weight_ih, num_rows, 1, call.needs(x)),
        *_step_products(call, module.weight_hh, num_rows, 1, call.needs(h)),
    ]


def _step_products(
    call: Call, weight: Tensor, num_rows: int, num_reads: int, has_grad_input: bool
) -> list[Product]:
    """(rows, in) x (in, out), in `num_reads` products that each read the (out, in) weight."""
    num_out, num_in = weight.shape
    return layer_products(
        num_rows * weight.numel(),
        act=num_rows * num_in,
        second=num_reads * weight.numel(),
        error=num_rows * num_out,
        has_grad_input=has_grad_input,
        has_grad_weight=call.needs(weight),
    )


# -- graphs ---------------------------------------------------------------------------------------


@COUNTERS.register("torch_geometric.nn.conv.gcn_conv.GCNConv")
def count_weighted_sum(call: Call) -> list[Product]:
    """Every node adds up its neighbours' features times the edges' coefficients.

    The self-loops that the layer adds count as edges. Edges without weights have no coefficients
    if the layer does not normalize.
    """
    module = _summing_module(call)
    x = call.argument(0, "x")
    num_edges = _num_edges(call, x if module.normalize and module.add_self_loops else None)
    weights = call.optional(2, "edge_weight")
    has_coefficients = module.normalize or weights is not None
    return layer_products(
        num_edges * (call.result.numel() // x.shape[module.node_dim]),
        act=call.result.numel(),
        second=num_edges,
        error=call.result.numel(),
        has_grad_input=call.has_graph,
        has_grad_weight=call.needs(weights),
        second_role=FIXED if has_coefficients else ONES,
    )


@COUNTERS.register("torch_geometric.nn.conv.sage_conv.SAGEConv")
@COUNTERS.register("torch_geometric.nn.conv.gin_conv.GINConv")
def count_sum(call: Call) -> list[Product]:
    """Every node adds up its neighbours' features; a mean divides afterwards."""
    module = _summing_module(call)
    x: Tensor = _sender(call)
    num_edges = _num_edges(call)
    num_features = x.numel() // x.shape[module.node_dim]
    is_input = not getattr(module, "project", False)  # otherwise the output of a linear layer
    return layer_products(
        num_edges * num_features,
        act=x.numel(),
        second=num_edges,
        error=call.result.shape[module.node_dim] * num_features,
        has_grad_input=call.needs(x) if is_input else call.has_graph,
        has_grad_weight=False,
        second_role=ONES,
    )


@COUNTERS.register("torch_geometric.nn.conv.gat_conv.GATConv")
def count_attention_sum(call: Call) -> list[Product]:
    """Every node adds up its neighbours' features times attention, one coefficient per head.

    The scores are float32: products of every node, and of every edge with features, with the
    attention vectors.
    """
    module = _summing_module(call)
    x: Tensor = _sender(call)
    num_edges = _num_edges(call, x if module.add_self_loops else None)
    width = module.heads * module.out_channels
    mixed = layer_products(
        num_edges * width,
        act=x.shape[0] * width,
        second=num_edges * module.heads,
        error=call.result.shape[0] * width,
        has_grad_input=call.has_graph,
        has_grad_weight=call.has_graph,
        second_role=FIXED,
    )
    others = call.argument(0, "x")
    num_scored = 2 * x.shape[0]
    if isinstance(others, (tuple, list)):
        num_scored = sum(part.shape[0] for part in others if part is not None)
    if module.lin_edge is not None and call.optional(2, "edge_attr") is not None:
        num_scored += num_edges
    matmuls = MATMULS if call.has_graph else MATMULS[:1]
    scores = num_scored * width
    return mixed + [
        Product(matmul=matmul, roles=(FIXED, FIXED), macs=scores, elements=(scores, width))
        for matmul in matmuls
    ]


@COUNTERS.register("torch_geometric.nn.conv.message_passing.MessagePassing")
def count_aggregation(call: Call) -> list[Product]:
    """Any other aggregation. Its linear layers have rows of their own."""
    raise UncountedError(_UNKNOWN)


def _summing_module(call: Call) -> Any:
    """The module, if it sums along edges with the forward of the counter's type."""
    module = call.module
    kind = module.float_type if isinstance(module, QuantizedLayer) else type(module)
    found = find_counter(kind)
    if found is None or kind.forward is not found[0].forward or module.aggr not in _SUMS:
        raise UncountedError(_UNKNOWN)
    return module


def _sender(call: Call) -> Any:
    """The features that edges start from."""
    x = call.argument(0, "x")
    if isinstance(x, (tuple, list)):
        return x[0 if call.module.flow == "source_to_target" else 1]
    return x


def _num_edges(call: Call, looped: Tensor | None = None) -> int:
    """The number of edges; with `looped`, one self-loop per node in place of the present ones."""
    edges = call.argument(1, "edge_index")
    if not isinstance(edges, Tensor) or edges.layout is not torch.strided:
        raise UncountedError("aggregation over a sparse matrix")
    if edges.is_meta:
        raise UncountedError("aggregation over edges on the meta device, where they have no values")
    if looped is None:
        return edges.shape[1]
    num_nodes: int = looped.shape[call.module.node_dim]
    return int((edges[0] != edges[1]).sum()) + num_nodes
