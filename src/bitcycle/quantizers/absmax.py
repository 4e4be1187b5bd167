"""`absmax`: symmetric grids around zero, as in most int8 inference.

    h = 2^(b-1),  s = max|x| / (h - 1),  n = rint(clamp(x / s, -(h - 1), h - 1)),  x^ = n * s

Zero is always on the grid, and the code -h is never used. One bit has no zero: x^ = -+max|x|.
weight: one maximum per output channel. act, error: one per tensor. Not from a paper: a baseline.
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
    quantize_by_rule,
    round_to_grid,
    work_dtype,
    work_range,
)


@QUANTIZERS.register("absmax")
@dataclass(frozen=True, kw_only=True)
class AbsMax(Quantizer):
    """Symmetric grids from the largest magnitude; weights per output channel, stochastic errors.

    error_rounding: "stochastic" or "nearest".

    >>> x = torch.tensor([-0.9, 0.0, 0.2, 0.4])
    >>> rule = AbsMax()
    >>> rule.encode("act", x, torch.tensor(7), rule.range_of("act", x)).dequantize()
    tensor([-0.9000,  0.0000,  0.3000,  0.3000])
    """

    error_rounding: Literal["stochastic", "nearest"] = "stochastic"

    roles: ClassVar[frozenset[str]] = frozenset({"weight", "act", "error"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("error_rounding", ("stochastic", "nearest"))

    @property
    def has_stochastic_error(self) -> bool:
        """Whether errors are rounded stochastically."""
        return self.error_rounding == "stochastic"

    @property
    def rule(self) -> Rule | None:
        """The native library's rule for the step; None for a subclass that has its own."""
        return Rule.SYMMETRIC if type(self).step is AbsMax.step else None

    @property
    def grid_rule(self) -> GridRule | None:
        """Symmetric; not for a subclass with rules of its own."""
        rule = self.rule
        if rule is None or not self.has_rules_of(AbsMax):
            return None
        return GridRule(rule=rule, is_stochastic=self.has_stochastic_error)

    def range_of(self, role: str, x: Tensor, keep: tuple[int, ...] = ()) -> Range:
        """-+max|x|: per channel for weights, of the whole tensor (or node) otherwise."""
        bound = max_abs(*work_range(x, keep))
        return -bound, bound

    def step(self, bound: Tensor, num_steps: Tensor) -> Tensor:
        """s, such that `num_steps` steps reach from 0 to the largest magnitude."""
        return bound / num_steps

    def encode(
        self,
        role: str,
        x: Tensor,
        levels: Tensor,
        within: Range,
        key: Tensor | None = None,
        as_codes: bool = False,
    ) -> Quantized:
        """Round to the symmetric grid that `within` fits in."""
        key = key if role == "error" and self.has_stochastic_error else None
        if self.rule is not None:
            made = quantize_by_rule(x, within, levels, self.rule, key=key, as_codes=as_codes)
            if made is not None:
                return made[0]
        dtype = work_dtype(x)
        bound = max_abs(within[0].to(dtype), within[1].to(dtype))
        levels = levels.to(dtype)
        half = (levels + 1) * 0.5
        is_one_bit = levels == 1
        num_steps = torch.where(is_one_bit, 0.5, half - 1)
        step = self.step(bound, num_steps)
        scale = step + (step == 0)  # a tensor of zeros gets the code of zero
        has_steps = (step != 0) | ~is_one_bit
        offset = -torch.where(is_one_bit, step * 0.5, scale * half)  # exact: half is 2^(b-1)
        limit = scale * num_steps
        inside = torch.minimum(torch.maximum(x.to(dtype), -limit), limit)  # never the code -half
        quantized = round_to_grid(
            inside, scale, offset, levels, key=key, as_codes=as_codes, has_steps=has_steps
        )
        if quantized.values is None or x.dtype == dtype:
            return quantized
        return Quantized(quantized.scale, quantized.offset, values=quantized.values.to(x.dtype))

    def integer_range(self, bits: int) -> tuple[int, int] | None:
        """1 .. 2^b - 1, which is -(h - 1) .. h - 1 moved up by h; up to 8 bits."""
        if bits > 8:
            return None
        return (0, 1) if bits == 1 else (1, 2**bits - 1)
