"""`dorefa`: DoReFa-Net's grids, fixed for weights and activations, per sample for errors.

    Q_k(r) = rint(r (2^k - 1)) / (2^k - 1) on [0, 1]
    weight  w^ = 2 Q_k(tanh(w) / (2 M) + 1/2) - 1,  M = max|tanh(w)| over the layer, not
            differentiated; k = 1: sign(w) * mean|w|
    act     a^ = Q_k(clip(a, 0, 1)), gradient 0 where it clips
    error   e^ = 2 m (Q_k(clip(e / (2 m) + 1/2 + N, 0, 1)) - 1/2),  m = max|e| of each sample,
            N = U(-1/2, 1/2) / (2^k - 1)

Each is an affine grid of 2^k values: [-1, 1] for tanh(w) / M, [0, 1] for a, [-m, m] for e.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bitcycle.ops.affine import Rule
from bitcycle.quantizers.base import (
    QUANTIZERS,
    GridRule,
    Quantized,
    Quantizer,
    Range,
    max_abs,
    round_to_range,
    work_dtype,
    work_range,
)


@QUANTIZERS.register("dorefa")
@dataclass(frozen=True, kw_only=True)
class DoReFa(Quantizer):
    """Zhou et al. 2016: weights through tanh, activations clipped to [0, 1], errors per sample.

    rescale: multiply the quantized weight by M, so that it keeps its size; needed where no
        normalization follows the layer.
    error_rounding: "stochastic" (as published) or "nearest".
    first_last: "float32" as published.

    >>> rule, levels = DoReFa(), torch.tensor(3)
    >>> t = rule.prepare("weight", torch.tensor([-1.0, 0.5, 2.0]))
    >>> rule.encode("weight", t, levels, rule.range_of("weight", t)).dequantize()
    tensor([-1.0000,  0.3333,  1.0000])
    """

    rescale: bool = False
    error_rounding: Literal["stochastic", "nearest"] = "stochastic"
    first_last: Literal["quantized", "float32"] = "float32"

    roles: ClassVar[frozenset[str]] = frozenset({"weight", "act", "error"})
    observes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("error_rounding", ("stochastic", "nearest"))

    @property
    def has_stochastic_error(self) -> bool:
        """Whether errors are rounded stochastically."""
        return self.error_rounding == "stochastic"

    def prepare(self, role: str, x: Tensor, levels: Tensor | None = None) -> Tensor:
        """Weights: tanh(w) / M, or w itself for one bit. Acts: clip(a, 0, 1)."""
        if role == "act":
            return x.clamp(0.0, 1.0)
        if role != "weight" or x.numel() == 0:
            return x
        t = torch.tanh(x)
        if not self.rescale:
            bound = t.detach().abs().max()
            t = t / (bound + (bound == 0))  # all-zero weights stay zeros
        return t if levels is None else torch.where(levels == 1, x, t)

    def range_of(self, role: str, x: Tensor, keep: tuple[int, ...] = ()) -> Range:
        """[0, 1] for prepared acts, -+max|w| for a prepared weight, -+max|e| for each sample."""
        by_sample = role == "error" and x.dim() > 1
        low, high = work_range(x, (0,) if by_sample else ())
        if role == "act":
            return low * 0.0, high * 0.0 + 1.0  # keeps a NaN visible
        bound = max_abs(low, high)
        return -bound, bound

    def encode(
        self,
        role: str,
        x: Tensor,
        levels: Tensor,
        within: Range,
        key: Tensor | None = None,
        as_codes: bool = False,
    ) -> Quantized:
        """Round a prepared tensor to the grid of `within`."""
        within = self._one_bit_range(role, x, levels, within)
        key = key if role == "error" and self.has_stochastic_error else None
        return round_to_range(x, within, levels, key=key, as_codes=as_codes)

    def _one_bit_range(self, role: str, x: Tensor, levels: Tensor, within: Range) -> Range:
        """-+mean|w| for a weight of one bit."""
        if role != "weight" or x.numel() == 0:
            return within
        mean = x.abs().mean(dtype=work_dtype(x))
        return (
            torch.where(levels == 1, -mean, within[0]),
            torch.where(levels == 1, mean, within[1]),
        )

    @property
    def grid_rule(self) -> GridRule | None:
        """From the lowest value of given ranges; errors have one per sample."""
        if not self.has_rules_of(DoReFa):
            return None
        given = frozenset({"act", "weight"})
        return GridRule(rule=Rule.FROM_LOW, has_channels=False, given=given, has_error=False)

    def grid_range(self, role: str, x: Tensor, levels: Tensor) -> Range:
        """The range with the one of a one-bit weight."""
        return self._one_bit_range(role, x, levels, self.range_of(role, x))

    def integer_range(self, bits: int) -> tuple[int, int] | None:
        """0 .. 2^b - 1, up to 8 bits."""
        return (0, 2**bits - 1) if bits <= 8 else None
