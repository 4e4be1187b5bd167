"""Range BN (Banner et al. 2018): the deviation is estimated from the range of chunks.

    n = N * space values per channel, in c chunks of m = n / c (c = 16, or the most that divide n)
    scale = k(m) * (mean of the chunks' maxima - mean of the chunks' minima)
    k(m) = 0.5 * 0.35 * (1 + sqrt(pi ln 4)) / sqrt(2 ln m)
    y = gamma * (x - mean) / (scale + eps) + beta

A range survives coarse grids where a sum of squares does not. In evaluation: running mean and
scale, each 0.1 * old + 0.9 * new; `running_var` holds the square of the scale.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from bitcycle.nn.norm import NORMS, QuantizedNorm

MAX_CHUNKS = 16
SHARE = 0.9  # of the new batch in the running statistics


def range_factor(m: int) -> float:
    """k(m): a Gaussian's deviation over the expected range of m samples, as published.

    >>> [round(range_factor(m), 5) for m in (8192, 2048, 512)]
    [0.12725, 0.13834, 0.15294]
    """
    return 0.5 * 0.35 * (1 + math.sqrt(math.pi * math.log(4))) / math.sqrt(2 * math.log(m))


def num_chunks(n: int) -> int:
    """The most chunks, up to 16, that divide n and hold at least two values each.

    >>> [num_chunks(n) for n in (512, 24, 17, 16)]
    [16, 12, 1, 8]
    """
    return next(c for c in range(min(MAX_CHUNKS, n // 2), 0, -1) if n % c == 0)


def range_scale(x: Tensor) -> Tensor:
    """The estimated deviation of each channel of (N, C, *); at least two values per channel."""
    channels = x.transpose(0, 1).flatten(1).contiguous()  # (C, n)
    num_channels, n = channels.shape
    chunks = channels.view(num_channels, num_chunks(n), -1)  # (C, c, m)
    spread = chunks.amax(2).mean(1) - chunks.amin(2).mean(1)
    return spread * range_factor(chunks.shape[2])


@NORMS.register("range")
class RangeNorm(QuantizedNorm):
    """A BatchNorm whose deviation is estimated from ranges (Range BN)."""

    def normalize(self, x: Tensor, control: Tensor) -> Tensor:
        """gamma * (x - mean) / (scale + eps) + beta."""
        if self.takes_batch:
            F._verify_batch_size(list(x.shape))  # type: ignore[attr-defined]
            mean, scale = x.mean([d for d in range(x.dim()) if d != 1]), range_scale(x)
            self._run(mean.detach(), scale.detach())
        else:
            assert self.running_mean is not None
            assert self.running_var is not None
            mean, scale = self.running_mean, self.running_var.sqrt()
        shape = [1, -1] + [1] * (x.dim() - 2)
        y = (x - mean.view(shape)) / (scale + self.eps).view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y

    def _run(self, mean: Tensor, scale: Tensor) -> None:
        if (share := self.count_batch(SHARE)) is None:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        dtype = self.running_mean.dtype
        self.running_mean.lerp_(mean.to(dtype), share)
        self.running_var.copy_(self.running_var.sqrt().lerp(scale.to(dtype), share).square())
