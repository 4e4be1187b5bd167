"""Recurrent layers written out slowly: a loop over time steps, autograd through the gates.

Every product is a function of its own that puts input, weight and error on grids by the rule's
text (tests/bitcycle/naive.py). Nothing is shared with the library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import naive


@dataclass(frozen=True)
class Bits:
    weight: int | None
    act: int | None
    error: int | None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bits: Bits, within: Any) -> Tensor:
        low, high = (x.min(), x.max()) if within is None else within
        qx, qw = naive.grid(x, bits.act, low, high), naive.per_channel(w, bits.weight)
        ctx.operands, ctx.bits = (qx, qw), bits
        return naive.linear(qx, qw, None, torch.zeros(len(x), len(w))).output.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> Any:
        qx, qw = ctx.operands
        products = naive.linear(qx, qw, None, naive.per_tensor(e, ctx.bits.error))
        return products.grad_input.to(e.dtype), products.grad_weight.to(e.dtype), None, None


def product(x: Tensor, w: Tensor, bias: Tensor | None, bits: Bits, within: Any = None) -> Tensor:
    """x w^T + bias, on grids between the extremes of x (or `within`) and of e."""
    output = _Product.apply(x, w, bits, within)
    return output if bias is None else output + bias


def next_state(mode: str, x: Tensor, p: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One time step, from the products of the input and of the hidden state."""
    if mode == "LSTM":
        i, f, g, o = (x + p).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if mode == "GRU":
        (xr, xz, xn), (pr, pz, pn) = x.chunk(3, dim=1), p.chunk(3, dim=1)
        z = (xz + pz).sigmoid()
        n = (xn + (xr + pr).sigmoid() * pn).tanh()
        return (1 - z) * n + z * h, c
    return (x + p).tanh() if mode == "RNN_TANH" else (x + p).relu(), c


def run_direction(
    mode: str, x: Tensor, counts: list[int], weights: dict[str, Tensor], h: Tensor, c: Tensor,
    bits: Bits, *, reverse: bool = False, within: tuple[Any, Any, Any] = (None, None, None),
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """x (rows, in), step t the next counts[t] rows of the first sequences."""
    x_range, h_range, p_range = within
    from_x = product(x, weights["weight_ih"], weights.get("bias_ih"), bits, x_range)
    steps = list(enumerate(from_x.split(counts)))
    outputs = {}
    for t, rows in reversed(steps) if reverse else steps:
        n = len(rows)
        p = product(h[:n], weights["weight_hh"], weights.get("bias_hh"), bits, h_range)
        new, new_c = next_state(mode, rows, p, h[:n], c[:n])
        if "weight_hr" in weights:
            new = product(new, weights["weight_hr"], None, bits, p_range)
        outputs[t] = new
        h, c = torch.cat([new, h[n:]]), torch.cat([new_c, c[n:]])
    return torch.cat([outputs[t] for t, _ in steps]), h, c


def run_layers(
    layer: nn.RNNBase, x: Tensor, counts: list[int], h: Tensor, c: Tensor, bits: Bits,
    ranges: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """All layers and directions; `ranges`: rows [count, low, spread] for evaluation."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    last_h, last_c, num_ranges = [], [], 3 if layer.proj_size else 2
    for k in range(layer.num_layers):
        outputs = []
        for d in range(2 if layer.bidirectional else 1):
            ending = f"_l{k}" + ("_reverse" if d else "")
            weights = {n: getattr(layer, n + ending) for n in names if hasattr(layer, n + ending)}
            i = len(last_h)
            within: list[Any] = [None] * 3
            if ranges is not None:
                rows = ranges[i * num_ranges : (i + 1) * num_ranges]
                within = [(row[1], row[1] + row[2]) for row in rows] + [None]
            out, new_h, new_c = run_direction(
                layer.mode, x, counts, weights, h[i], c[i], bits,
                reverse=bool(d), within=(within[0], within[1], within[2]),
            )  # fmt: skip
            outputs.append(out)
            last_h.append(new_h)
            last_c.append(new_c)
        x = torch.cat(outputs, dim=1)
    return x, torch.stack(last_h), torch.stack(last_c)
