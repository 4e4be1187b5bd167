"""Products of torch's recurrent layers and cells.

Per time step, layer and direction: gates x hidden x (input + recurrent) MACs, and with a projection
hidden x proj_size more. The input's product needs no earlier step and reads its weight once; the
recurrent one reads its weight at every time step.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from bitcycle.cost.product import COUNTERS, Call, Product, UncountedError, layer_products


@COUNTERS.register("torch.nn.modules.rnn.RNN")
@COUNTERS.register("torch.nn.modules.rnn.LSTM")
@COUNTERS.register("torch.nn.modules.rnn.GRU")
def count_recurrent(call: Call) -> list[Product]:
    """All time steps of all layers. The first step's state has a gradient only if h_0 does."""
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
    """Time steps, rows over all of them (N x T when none is shorter), and rows of the first."""
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
