"""What a recurrent cell does between its products: float32 non-linearities, and their slopes.

A cell takes two products, one of the input (x) and one of the hidden state (h), each with its
bias, and makes the next state. Backwards everything is linear in the arriving gradient, so the
factors (`slopes`) are computed for all time steps at once and a step only multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

Kept = tuple[Tensor, ...]
Slopes = tuple[Tensor, ...]  # their first dimension runs over the rows, as in Kept


class Gates(Protocol):
    """The arithmetic of one kind of cell; `size` below is the number of hidden units."""

    count: ClassVar[int]  # gates: the products have count * size columns
    kept: ClassVar[tuple[int, ...]]  # widths, in sizes, of what the backward pass reads
    has_one_error: ClassVar[bool]  # the two products are only added, so their errors are equal

    def step(
        self, x: Tensor, h: Tensor, before: Tensor, c: Tensor | None, kept: Kept
    ) -> tuple[Tensor, Tensor | None]:
        """The next hidden and cell state; fills `kept`. `h` (the product) may be overwritten."""

    def slopes(self, kept: Kept) -> Slopes:
        """The factors of `back`, for all rows."""

    def back(
        self, slopes: Slopes, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Fill the errors of the two products; return what the earlier h and c get directly.

        `dx` and `dproduct` are one tensor where `has_one_error`.
        """


@dataclass(frozen=True)
class LSTMGates:
    """c' = f c + i g, h' = o tanh(c'); i, f, o = sigmoid(x + h), g = tanh(x + h)."""

    count: ClassVar[int] = 4
    kept: ClassVar[tuple[int, ...]] = (4, 1)  # i f g o; the cell state before
    has_one_error: ClassVar[bool] = True

    def step(
        self, x: Tensor, h: Tensor, before: Tensor, c: Tensor | None, kept: Kept
    ) -> tuple[Tensor, Tensor | None]:
        """One time step."""
        assert c is not None
        gates, c_before = kept
        size = c.shape[1]
        total = h.add_(x)
        torch.sigmoid(total[:, : 2 * size], out=gates[:, : 2 * size])
        torch.tanh(total[:, 2 * size : 3 * size], out=gates[:, 2 * size : 3 * size])
        torch.sigmoid(total[:, 3 * size :], out=gates[:, 3 * size :])
        i, f, g, o = gates.chunk(4, dim=1)
        c_before.copy_(c)
        c = torch.addcmul(f * c, i, g)
        return o * torch.tanh(c), c

    def slopes(self, kept: Kept) -> Slopes:
        """Of the four gates, of the cell state in h', and of the cell state before in c'."""
        gates, c_before = kept
        i, f, g, o = gates.chunk(4, dim=1)
        tanh_c = torch.addcmul(f * c_before, i, g).tanh_()
        gate_slopes = torch.empty_like(gates)
        to_i, to_f, to_g, to_o = gate_slopes.chunk(4, dim=1)
        torch.mul(i * (1 - i), g, out=to_i)
        torch.mul(f * (1 - f), c_before, out=to_f)
        torch.mul(1 - g * g, i, out=to_g)
        torch.mul(o * (1 - o), tanh_c, out=to_o)
        to_c = tanh_c.square_().neg_().add_(1).mul_(o)
        return gate_slopes, to_c, f

    def back(
        self, slopes: Slopes, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """One time step backwards."""
        assert dc is not None
        gate_slopes, to_c, f = slopes
        size = dh.shape[1]
        dc = torch.addcmul(dc, dh, to_c)
        through_cell = gate_slopes[:, : 3 * size].view(-1, 3, size)
        torch.mul(dc.unsqueeze(1), through_cell, out=dx[:, : 3 * size].view(-1, 3, size))
        torch.mul(dh, gate_slopes[:, 3 * size :], out=dx[:, 3 * size :])
        return None, dc * f


@dataclass(frozen=True)
class GRUGates:
    """h' = (1 - z) n + z h; r, z = sigmoid(x + h), n = tanh(x + r h) of the products x and h."""

    count: ClassVar[int] = 3
    kept: ClassVar[tuple[int, ...]] = (3, 1, 1)  # r z n; the product that r scales; h before
    has_one_error: ClassVar[bool] = False

    def step(
        self, x: Tensor, h: Tensor, before: Tensor, c: Tensor | None, kept: Kept
    ) -> tuple[Tensor, Tensor | None]:
        """One time step."""
        gates, scaled, h_before = kept
        size = before.shape[1]
        torch.add(x[:, : 2 * size], h[:, : 2 * size], out=gates[:, : 2 * size]).sigmoid_()
        r, z, n = gates.chunk(3, dim=1)
        scaled.copy_(h[:, 2 * size :])
        torch.addcmul(x[:, 2 * size :], r, scaled, out=n).tanh_()
        h_before.copy_(before)
        return torch.lerp(n, before, z), None

    def slopes(self, kept: Kept) -> Slopes:
        """Of the three gates, then r (which scales the product of h) and z (which keeps h)."""
        gates, scaled, h_before = kept
        r, z, n = gates.chunk(3, dim=1)
        gate_slopes = torch.empty_like(gates)
        to_r, to_z, to_n = gate_slopes.chunk(3, dim=1)
        torch.mul(1 - z, 1 - n * n, out=to_n)
        torch.mul(z * (1 - z), h_before - n, out=to_z)
        torch.mul(to_n * scaled, r * (1 - r), out=to_r)
        return gate_slopes, r, z

    def back(
        self, slopes: Slopes, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """One time step backwards."""
        gate_slopes, r, z = slopes
        size = dh.shape[1]
        by_gate = gate_slopes.view(-1, 3, size)
        torch.mul(dh.unsqueeze(1), by_gate, out=dx.view(-1, 3, size))
        dproduct.copy_(dx)
        dproduct[:, 2 * size :].mul_(r)
        return dh * z, None


@dataclass(frozen=True)
class RNNGates:
    """h' = tanh(x + h), or relu."""

    nonlinearity: str = "tanh"
    count: ClassVar[int] = 1
    kept: ClassVar[tuple[int, ...]] = (1,)  # h'
    has_one_error: ClassVar[bool] = True

    def step(
        self, x: Tensor, h: Tensor, before: Tensor, c: Tensor | None, kept: Kept
    ) -> tuple[Tensor, Tensor | None]:
        """One time step."""
        total = h.add_(x)
        after = total.tanh_() if self.nonlinearity == "tanh" else total.relu_()
        kept[0].copy_(after)
        return after, None

    def slopes(self, kept: Kept) -> Slopes:
        """1 - h'^2, or 1 where h' > 0."""
        (after,) = kept
        return (1 - after * after if self.nonlinearity == "tanh" else (after > 0).to(after.dtype),)

    def back(
        self, slopes: Slopes, dh: Tensor, dc: Tensor | None, dx: Tensor, dproduct: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """One time step backwards."""
        torch.mul(dh, slopes[0], out=dx)
        return None, None
