"""Fixed-point BatchNorm (WAGEUBN): statistics, normalized values and parameters on grids.

    Q(x, k) = rint(x 2^(k-1)) / 2^(k-1), straight through
    mean^ = Q(mean, k + 8),  std^ = Q(sqrt(var + eps), k + 8)      bits of act: 16 for k = 8
    x^ = Q((x - mean^) / std^, k),  y = Q(gamma, j) x^ + Q(beta, j)    j: bits of weight
    backward: the error at y becomes R clip_k(Q(e / R, k)), bits of error

Published for 8 bits; k + 8 for other widths is ours.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bitcycle.nn.norm import NORMS, QuantizedNorm
from bitcycle.nn.product import LEVELS
from bitcycle.ops.affine import value_range
from bitcycle.quantizers.grid import largest
from bitcycle.quantizers.wageubn import activation_error, fixed_point, halves

_FINER = 256.0  # statistics have 8 bits more


class _Rounded(torch.autograd.Function):
    """Q(x, k), with the gradient of x itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, half: Tensor) -> Tensor:
        return fixed_point(x, half)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g, None


class _RoundedError(torch.autograd.Function):
    """y itself; its error on a grid."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, levels: Tensor) -> Tensor:
        ctx.levels = levels
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, e: Tensor) -> tuple[Tensor, None]:
        return activation_error(e, ctx.levels, largest(*value_range(e))), None


def _rounded(x: Tensor, half: Tensor) -> Tensor:
    result: Tensor = _Rounded.apply(x, half)  # type: ignore[no-untyped-call]
    return result


@NORMS.register("grid")
class GridNorm(QuantizedNorm):
    """A BatchNorm whose statistics, values and parameters are on power-of-two grids."""

    rule_roles = ("weight", "act", "error")

    def normalize(self, x: Tensor, control: Tensor) -> Tensor:
        """Q(gamma) Q((x - Q(mean)) / Q(std)) + Q(beta)."""
        mean, std = self._statistics(x)
        shape = [1, -1] + [1] * (x.dim() - 2)
        if "act" in self.quantized_roles:
            half = halves(control[LEVELS["act"]], x.dtype)
            finer = half * _FINER
            mean, std = _rounded(mean, finer), _rounded(std, finer).clamp_min(1 / finer)
            y = _rounded((x - mean.view(shape)) / std.view(shape), half)
        else:
            y = (x - mean.view(shape)) / std.view(shape)
        if self.affine:
            gamma: Tensor = self.weight
            beta: Tensor = self.bias
            if "weight" in self.quantized_roles:
                half = halves(control[LEVELS["weight"]], x.dtype)
                gamma, beta = _rounded(gamma, half), _rounded(beta, half)
            y = y * gamma.view(shape) + beta.view(shape)
        if "error" in self.quantized_roles:
            y = _RoundedError.apply(y, control[LEVELS["error"]])  # type: ignore[no-untyped-call]
        return y

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and sqrt(var + eps) of each channel: the batch's, or the running ones."""
        if not self.takes_batch:
            assert self.running_mean is not None
            assert self.running_var is not None
            return self.running_mean, (self.running_var + self.eps).sqrt()
        F._verify_batch_size(list(x.shape))  # type: ignore[attr-defined]
        dims = [d for d in range(x.dim()) if d != 1]
        var, mean = torch.var_mean(x, dims, correction=0)
        n = x.numel() // x.shape[1]
        self._run(mean.detach(), var.detach() * (n / (n - 1)))
        return mean, (var + self.eps).sqrt()

    def _run(self, mean: Tensor, var: Tensor) -> None:
        if (share := self.count_batch(self.momentum or 0.0)) is None:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        dtype = self.running_mean.dtype
        self.running_mean.lerp_(mean.to(dtype), share)
        self.running_var.lerp_(var.to(dtype), share)
