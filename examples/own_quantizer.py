"""A quantizer of one's own in one file: it has a name, and every layer, schedule and kernel.

A quantizer says which range a tensor gets and how it is put on a grid; layers, running ranges,
kernels and schedules are not its business. `three_sigma` clips what is far out, so that the rest
gets finer steps: compare it with `sbm`, whose grid spans everything.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.ops.affine import grid_step, value_range
from bitcycle.quantizers import QUANTIZERS, Quantized, Quantizer, Range
from bitcycle.quantizers.base import round_to_grid, work_dtype


@QUANTIZERS.register("three_sigma")
@dataclass(frozen=True, kw_only=True)
class ThreeSigma(Quantizer):
    """Grids over mean -+ 3 deviations: outliers are clipped, the others get finer steps."""

    deviations: float = 3.0

    roles: ClassVar[frozenset[str]] = frozenset({"weight", "act", "error"})

    def range_of(self, role: str, x: Tensor, keep: tuple[int, ...] = ()) -> Range:
        """mean -+ 3 deviations, within the extremes; one range per index of the kept dims."""
        work = x.to(work_dtype(x))
        low, high = value_range(work, keep)
        if x.numel() == 0:
            return low, high
        dims = [d for d in range(x.dim()) if d not in keep]
        std, mean = torch.std_mean(work, dims, correction=0, keepdim=bool(keep))
        reach = self.deviations * std
        return torch.maximum(low, mean - reach), torch.minimum(high, mean + reach)

    def encode(
        self,
        role: str,
        x: Tensor,
        levels: Tensor,  # 2^bits - 1, as a tensor: bits are data
        within: Range,  # of this batch, or the layer's running range
        key: Tensor | None = None,  # for stochastic rounding
        carrier: torch.dtype | None = None,  # torch.uint8 or torch.int8 where codes are wanted
    ) -> Quantized:
        """rint(clamp((x - low) / s, 0, levels)) * s + low; errors are rounded stochastically."""
        dtype = work_dtype(x)
        low, high = (end.to(dtype) for end in within)
        levels = levels.to(dtype)
        scale = grid_step(low, high, levels)
        key = key if role == "error" else None
        return round_to_grid(x, scale, low, levels, key=key, carrier=carrier, has_steps=high != low)

    def integer_range(self, bits: int) -> tuple[int, int] | None:
        """Codes 0 .. 2^bits - 1, which kernels of codes carry up to 8 bits."""
        return (0, 2**bits - 1) if bits <= 8 else None


def train(quantizer: str) -> float:
    """Percent of test digits that a small network gets right after 4-bit cycles."""
    images, targets = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(targets)  # (1797, 64)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                          nn.Linear(64, 10))  # fmt: skip
    bc.quantize_model(model, quantizer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    bits = bc.PrecisionScheduler(model, forward="CR:2-4:8", backward=8, total_steps=300)
    for _ in range(300):
        batch = torch.randint(1200, (64,))
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
        bits.step()
    with bc.at_precision(model.eval(), bits.top), torch.no_grad():
        return 100 * (model(x[1200:]).argmax(1) == y[1200:]).float().mean().item()


if __name__ == "__main__":
    for name in ("sbm", "three_sigma"):
        print(f"{name:<12} test accuracy {train(name):.1f} %")
