"""`sbm_full`: 8-bit training as Banner et al. published it.

    levels = 2^b - 1,  s = (max - min) / levels,  u = (x - min) / s
    q = rint(clamp(u, 0, levels)),  x^ = q * s + min

weight: one range per tensor. act: the means over samples of each sample's minimum and maximum; the
running ones are 0.1 old + 0.9 new, as in the authors' code. error: two versions (gradient
bifurcation); grad_input reads it rounded stochastically, grad_weight unrounded. BatchNorms become
Range BN on the same grids (`bitcycle.nn.norm`). `sbm`, CPT's simplification, differs in all of it.
`docs/quantizers.md` says what is the paper's, the authors' code's and ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bitcycle.quantizers.base import (
    QUANTIZERS,
    Quantized,
    Quantizer,
    Range,
    round_to_range,
    work_range,
)

_FINER_NOISE = 0x6A09E667  # separates the noise of the finer error


@QUANTIZERS.register("sbm_full")
@dataclass(frozen=True, kw_only=True)
class SBMFull(Quantizer):
    """Banner et al. as published: two errors (gradient bifurcation), Range BN, one weight scale.

    weight_range: "tensor" (as published) or "channel", one per output channel.
    grad_weight_error: bits of the error that grad_weight reads; None is float32. Published
        experiments keep it at 16 bits or float32.
    error_rounding: "stochastic" (as published) or "nearest".
    norm: "range" (as published) or "batch", the model's own BatchNorm.

    >>> rule = SBMFull()
    >>> x = torch.tensor([[0.0, 1.0], [-2.0, 5.0]])  # two samples
    >>> rule.range_of("act", x)
    (tensor(-1.), tensor(3.))
    """

    weight_range: Literal["tensor", "channel"] = "tensor"
    grad_weight_error: int | None = None
    error_rounding: Literal["stochastic", "nearest"] = "stochastic"
    norm: Literal["range", "batch"] = "range"

    roles: ClassVar[frozenset[str]] = frozenset({"weight", "act", "error"})
    range_momentum: ClassVar[float] = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("weight_range", ("tensor", "channel"))
        self._check_choice("error_rounding", ("stochastic", "nearest"))
        self._check_choice("norm", ("range", "batch"))
        bits = self.grad_weight_error
        if bits is not None and not (isinstance(bits, int) and 1 <= bits < 24):
            raise ValueError(
                f"SBMFull grad_weight_error ({bits!r}) must be None (float32) or bits from 1 to 23"
            )

    @property
    def has_stochastic_error(self) -> bool:
        """Whether errors are rounded stochastically."""
        return self.error_rounding == "stochastic"

    @property
    def norm_rule(self) -> str | None:
        """Range BN, unless norm="batch"."""
        return "range" if self.norm == "range" else None

    def range_of(self, role: str, x: Tensor, keep: tuple[int, ...] = ()) -> Range:
        """Extremes of the tensor; of an act, their means over samples (the first dimension)."""
        if role == "act" and x.dim() > 1 and x.numel() > 0:
            low, high = work_range(x, (0,))
            return low.mean(), high.mean()
        by_channel = role == "weight" and self.weight_range == "channel"
        return work_range(x, keep if by_channel else ())

    def encode(
        self,
        role: str,
        x: Tensor,
        levels: Tensor,
        within: Range,
        key: Tensor | None = None,
        as_codes: bool = False,
    ) -> Quantized:
        """Round to the grid of `within`."""
        key = key if role == "error" and self.has_stochastic_error else None
        return round_to_range(x, within, levels, key=key, as_codes=as_codes)

    def encode_error(
        self,
        e: Tensor,
        levels: Tensor,
        within: Range,
        key: Tensor | None,
        as_codes: bool = False,
    ) -> tuple[Quantized, Quantized]:
        """On the grid for grad_input; float32, or on a finer grid, for grad_weight."""
        for_input = self.encode("error", e, levels, within, key, as_codes)
        if self.grad_weight_error is None:
            return for_input, Quantized(values=e)
        finer = torch.maximum(levels, torch.full_like(levels, 2**self.grad_weight_error - 1))
        key = None if key is None else key ^ _FINER_NOISE
        return for_input, self.encode("error", e, finer, within, key)

    def grad_weight_bits(self, bits: int) -> int | None:
        """`grad_weight_error` if it is more; float32 if it is None."""
        return None if self.grad_weight_error is None else max(bits, self.grad_weight_error)

    def integer_range(self, bits: int) -> tuple[int, int] | None:
        """0 .. 2^b - 1, up to 8 bits."""
        return (0, 2**bits - 1) if bits <= 8 else None
