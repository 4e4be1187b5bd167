"""A statistical test that the quantizers' stochastic parts share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

NUM = 1000


def assert_unbiased(x: Tensor, step: Tensor, draw: Callable[[Tensor], Tensor]) -> None:
    """The mean of `draw(key)` over many keys is x, as rounding up or down by chance makes it.

    x: on grids of these steps through 0, no element at the ends of its grid.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        keys = torch.randint(-(2**31), 2**31 - 1, (NUM, 2), dtype=torch.int32)
    mean = torch.zeros_like(x, dtype=torch.float64)
    for key in keys:
        mean += draw(key).double() / NUM
    place = (x.double() / step.double()) % 1
    z = (mean - x) / (step.double() * (place * (1 - place) / NUM).sqrt())
    # squares of n standard normals: mean n, variance 2 n; 6 deviations
    n = x.numel()
    assert abs(float(z.square().sum()) - n) < 6 * (2 * n) ** 0.5
