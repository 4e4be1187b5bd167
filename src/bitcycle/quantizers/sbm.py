"""`sbm`: the quantizer of Cyclic Precision Training, a simplification of Banner et al.

    levels = 2^b - 1,  s = (max - min) / levels,  u = (x - min) / s
    q = rint(clamp(u, 0, levels)),  x^ = q * s + min

weight: one range per output channel, nearest even. act: one range per batch tensor, nearest even.
error (the gradient with respect to a layer's output): one range per tensor, stochastic, once for
both backward products. grad: no rule. `sbm_full`, the method as Banner et al. published it, has one
weight range, two errors and Range BN instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from bitcycle.ops.affine import Rule
from bitcycle.quantizers.base import (
    QUANTIZERS,
    GridRule,
    Quantized,
    Quantizer,
    Range,
    quantize_by_rule,
    round_to_range,
    work_range,
)


@QUANTIZERS.register("sbm")
@dataclass(frozen=True, kw_only=True)
class SBM(Quantizer):
    """Affine min-max grids; weights per output channel, stochastic errors (CPT's quantizer).

    error_rounding: "stochastic" (as published) or "nearest".
    zero: "real" (as published: the offset is the minimum itself) or "integer": the range is
        widened to include 0 and the offset is a whole number of steps, so that 0 is on the grid.
    sync_ranges: take act and error ranges over all data-parallel processes.
    grad_input_weight: the weight grid that grad_input reads. "shared" (as published): that of the
        output. Its scales lie on the axis that grad_input sums over, so kernels that multiply codes
        round the weight once more, to 16 bits. "per_input_channel": a separate grid along the other
        axis, which makes that product exact (float32 for convolutions with strides or groups).
    floor: smallest step. 1e-8 reproduces the reference code, in which a 16-bit error has only
        about 10 bits, because errors have ranges of 1e-5.

    >>> x = torch.tensor([-1.0, -0.4, 0.1, 0.7, 2.0])
    >>> sbm = SBM()
    >>> sbm.encode("act", x, torch.tensor(7), sbm.range_of("act", x)).dequantize()
    tensor([-1.0000, -0.5714,  0.2857,  0.7143,  2.0000])
    """

    error_rounding: Literal["stochastic", "nearest"] = "stochastic"
    zero: Literal["real", "integer"] = "real"
    grad_input_weight: Literal["shared", "per_input_channel"] = "shared"
    sync_ranges: bool = False
    floor: float = 0.0

    roles: ClassVar[frozenset[str]] = frozenset({"weight", "act", "error"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("error_rounding", ("stochastic", "nearest"))
        self._check_choice("zero", ("real", "integer"))
        self._check_choice("grad_input_weight", ("shared", "per_input_channel"))
        if not self.floor >= 0:
            raise ValueError(f"SBM floor ({self.floor}) must be 0 or a small positive step")

    @property
    def has_stochastic_error(self) -> bool:
        """Whether errors are rounded stochastically."""
        return self.error_rounding == "stochastic"

    @property
    def grid_rule(self) -> GridRule | None:
        """From the minimum, or with 0; ranges that processes share are given."""
        if not self.has_rules_of(SBM):
            return None
        return GridRule(
            rule=Rule.FROM_LOW if self.zero == "real" else Rule.WITH_ZERO,
            floor=self.floor,
            given=frozenset({"act", "error"} if self.sync_ranges else ()),
            is_stochastic=self.has_stochastic_error,
        )

    @property
    def weight_grids(self) -> int:
        """2 if grad_input reads the weight on a separate grid."""
        return 1 if self.grad_input_weight == "shared" else 2

    def range_of(self, role: str, x: Tensor, keep: tuple[int, ...] = ()) -> Range:
        """Minimum and maximum: per channel for weights, of the whole tensor (or node) otherwise.

        In float32 for half-precision tensors, whose range may exceed their largest number.
        """
        low, high = work_range(x, keep)
        if self.sync_ranges and self._is_shared(role, keep):
            ends = torch.stack([-low, high])
            dist.all_reduce(ends, op=dist.ReduceOp.MAX)
            low, high = -ends[0], ends[1]
        return low, high

    def _is_shared(self, role: str, keep: tuple[int, ...]) -> bool:
        """Whether sync_ranges concerns this range; not one per node: ranks have other nodes."""
        return role != "weight" and not keep and _is_distributed()

    def quantize(
        self,
        role: str,
        x: Tensor,
        levels: Tensor,
        keep: tuple[int, ...] = (),
        key: Tensor | None = None,
        as_codes: bool = False,
    ) -> tuple[Quantized, Range]:
        """`range_of` and `encode`, by one call of the native library where it can."""
        is_own = type(self).range_of is SBM.range_of and type(self).encode is SBM.encode
        if is_own and not (self.sync_ranges and self._is_shared(role, keep)):
            rule = Rule.FROM_LOW if self.zero == "real" else Rule.WITH_ZERO
            noise = key if role == "error" and self.has_stochastic_error else None
            made = quantize_by_rule(
                x, keep, levels, rule, floor=self.floor, key=noise, as_codes=as_codes
            )
            if made is not None:
                return made
        return super().quantize(role, x, levels, keep, key, as_codes)

    def encode(
        self,
        role: str,
        x: Tensor,
        levels: Tensor,
        within: Range,
        key: Tensor | None = None,
        as_codes: bool = False,
    ) -> Quantized:
        """Round to the grid of `within`; arithmetic in float32 for half-precision tensors."""
        return round_to_range(
            x,
            within,
            levels,
            key=key if role == "error" and self.has_stochastic_error else None,
            as_codes=as_codes,
            has_zero=self.zero == "integer",
            floor=self.floor,
        )

    def integer_range(self, bits: int) -> tuple[int, int] | None:
        """0 .. 2^b - 1, up to 8 bits."""
        return (0, 2**bits - 1) if bits <= 8 else None


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
