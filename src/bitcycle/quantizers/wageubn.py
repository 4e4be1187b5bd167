"""`wageubn`: every tensor of training on fixed-point grids whose steps are powers of two.

    Q(x, k) = rint(x 2^(k-1)) / 2^(k-1),  clip_k(x) = clamp(x, -1 + 2^(1-k), 1 - 2^(1-k))
    R(x) = 2^rint(log2 max|x|), of the whole tensor
    weight  clip_k(Q(w, k))        act  Q(a, k), not clipped
    error   at a layer's output, "flag" form: s = R / 2^(k-1), d = |e| / s,
            sign(e) s min(rint(d), 2^(k-1) - 1) if d >= 1, else sign(e) s min(Q(d, k), 1)
            at an activation: R clip_k(Q(e / R, k))
    grad    n = sign(g) clamp(stochastic rint(dr |g| / R), dr - 1),  g^ = n / (128 * 2^(k-1))

BatchNorms follow `bitcycle.nn.norm`. Published for k = 8 only. For other k the constants
are scaled here: dr becomes max(2, dr 2^(k-8)), and n is scaled so that the largest g^ is that of
8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bitcycle.ops.affine import nearest_power, value_range
from bitcycle.ops.layout import element_numbers
from bitcycle.ops.noise import uniform
from bitcycle.quantizers.base import (
    QUANTIZERS,
    Quantized,
    Quantizer,
    Range,
    max_abs,
    work_dtype,
    work_range,
)

STAGES = ((0.0, 128), (0.3, 128), (0.6, 32), (0.8, 8), (0.9, 2))  # share of training -> dr
_GRAD_NOISE = 0x3C6EF372  # separates the noise of a layer's grad and error


def halves(levels: Tensor, dtype: torch.dtype) -> Tensor:
    """2^(k-1) from the level count 2^k - 1."""
    return (levels.to(dtype) + 1) * 0.5


def fixed_point(x: Tensor, half: Tensor) -> Tensor:
    """Q(x, k) = rint(x 2^(k-1)) / 2^(k-1), for half = 2^(k-1).

    >>> fixed_point(torch.tensor([0.3, -0.1, 1.7]), torch.tensor(4.0))
    tensor([0.2500, -0.0000, 1.7500])
    """
    return torch.round(x * half) / half


def activation_error(e: Tensor, levels: Tensor, bound: Tensor) -> Tensor:
    """R clip_k(Q(e / R, k)), where R is the power of two nearest to bound = max|e|.

    >>> e = torch.tensor([0.3, -0.1, 0.01])
    >>> activation_error(e, torch.tensor(255), torch.tensor(0.3))
    tensor([ 0.2480, -0.0996,  0.0098])
    """
    half = halves(levels, e.dtype)
    r = nearest_power(bound)
    q = fixed_point(e / (r + (r == 0)), half)
    limit = 1 - 1 / half
    return r * torch.minimum(torch.maximum(q, -limit), limit)


def flag_error(e: Tensor, levels: Tensor, bound: Tensor) -> Tensor:
    """Two grids, the finer one below the first step s = R / 2^(k-1) of the coarser.

    >>> e = torch.tensor([0.3, -0.1, 0.01, 0.001])
    >>> flag_error(e, torch.tensor(255), torch.tensor(0.3))
    tensor([ 0.2480, -0.0996,  0.0098,  0.0010])
    """
    half = halves(levels, e.dtype)
    r = nearest_power(bound)
    s = r / half
    d = e.abs() / (s + (s == 0))
    coarse = torch.minimum(torch.round(d), half - 1)
    fine = fixed_point(d, half).clamp_max(1.0)
    return torch.where(d >= 1, coarse, fine) * s * torch.sign(e)


@QUANTIZERS.register("wageubn")
@dataclass(frozen=True, kw_only=True)
class WAGEUBN(Quantizer):
    """Yang et al. 2020: weights, acts, errors, gradients and BatchNorm on power-of-two grids.

    total_steps: optimizer steps of the run. dr is 128 and falls to 32, 8 and 2 at 60, 80 and 90 %
        of them; None keeps 128. The scheduler counts the steps.
    error_form: "flag" (as published for the output of a convolution) or "activation".
    norm: "grid" (as published) or "batch", the model's own BatchNorm.
    first_last: "float32" as published.

    >>> rule, levels = WAGEUBN(), torch.tensor(7)  # 3 bits: steps of 1/4
    >>> w = torch.tensor([-2.0, 0.3, 0.9])
    >>> rule.encode("weight", w, levels, rule.range_of("weight", w)).dequantize()
    tensor([-0.7500,  0.2500,  0.7500])
    """

    total_steps: int | None = None
    error_form: Literal["flag", "activation"] = "flag"
    norm: Literal["grid", "batch"] = "grid"
    first_last: Literal["quantized", "float32"] = "float32"

    roles: ClassVar[frozenset[str]] = frozenset({"weight", "act", "error", "grad"})
    observes: ClassVar[bool] = False
    min_bits: ClassVar[int] = 2  # clip_1 leaves only 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("error_form", ("flag", "activation"))
        self._check_choice("norm", ("grid", "batch"))
        if self.total_steps is not None and not self.total_steps >= 1:
            raise ValueError(f"WAGEUBN total_steps ({self.total_steps}) must be at least 1")

    @property
    def has_stochastic_error(self) -> bool:
        """Errors are rounded to nearest; only gradients are stochastic."""
        return False

    @property
    def norm_rule(self) -> str | None:
        """Fixed-point BatchNorm, unless norm="batch"."""
        return "grid" if self.norm == "grid" else None

    def range_of(self, role: str, x: Tensor, keep: tuple[int, ...] = ()) -> Range:
        """Extremes of the tensor: R for an error; for other roles only to detect NaN."""
        return work_range(x)

    def encode(
        self,
        role: str,
        x: Tensor,
        levels: Tensor,
        within: Range,
        key: Tensor | None = None,
        as_codes: bool = False,
    ) -> Quantized:
        """Values; there are no codes (`integer_range`)."""
        assert not as_codes
        work = x.to(work_dtype(x))
        if role == "error":
            bound = max_abs(within[0].to(work.dtype), within[1].to(work.dtype))
            form = flag_error if self.error_form == "flag" else activation_error
            return Quantized(values=form(work, levels, bound).to(x.dtype))
        half = halves(levels, work.dtype)
        values = fixed_point(work, half)
        if role == "weight":
            limit = 1 - 1 / half
            values = torch.minimum(torch.maximum(values, -limit), limit)
        return Quantized(1 / half, torch.zeros_like(half), values.to(x.dtype))

    def encode_grad(
        self, g: Tensor, levels: Tensor, key: Tensor | None, step: Tensor | None = None
    ) -> Tensor:
        """Normalize and round the gradient: its largest magnitude becomes about dr / 2^14."""
        work = g.to(work_dtype(g))
        r = nearest_power(max_abs(*value_range(work)))
        dr = self.levels_of_grad(work, step)
        dr_k = (dr * halves(levels, work.dtype) / 128).clamp_min(2.0)
        n = (work / (r + (r == 0))).abs() * dr_k
        if key is not None:
            n = n + uniform(element_numbers(work), key ^ _GRAD_NOISE)
        n = torch.minimum(torch.round(n), dr_k - 1) * torch.sign(work)
        return (n * (dr / dr_k) * 2.0**-14).to(g.dtype)

    def levels_of_grad(self, g: Tensor, step: Tensor | None) -> Tensor:
        """dr at this optimizer step."""
        dr = torch.full((), float(STAGES[0][1]), dtype=g.dtype, device=g.device)
        if self.total_steps is None or step is None:
            return dr
        for share, value in STAGES[1:]:
            dr = torch.where(step >= share * self.total_steps, float(value), dr)
        return dr

    def integer_range(self, bits: int) -> tuple[int, int] | None:
        """None: acts are not clipped and errors have two grids, so no byte can hold a code."""
        return None
