"""Your own quantizer in one file, registered by name for every layer, schedule and kernel.

A quantizer computes the range of a tensor and rounds the tensor to a grid. It does not depend on
layers, running ranges, kernels or schedules. `three_sigma` clips outliers, so that other values get
finer steps. The grid of `sbm`, the default, spans all values.
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
    """Grids over mean -+ 3 standard deviations; outliers are clipped."""

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
        levels: Tensor,  # 2^bits - 1, as a tensor
        within: Range,  # the range of this batch, or the layer's running range
        key: Tensor | None = None,  # for stochastic rounding
        as_codes: bool = False,  # codes instead of values
    ) -> Quantized:
        """rint(clamp((x - low) / s, 0, levels)) * s + low.

        Errors, the gradients with respect to a layer's output, are rounded stochastically.
        """
        dtype = work_dtype(x)
        low, high = (end.to(dtype) for end in within)
        levels = levels.to(dtype)
        scale = grid_step(low, high, levels)
        key = key if role == "error" else None
        return round_to_grid(
            x, scale, low, levels, key=key, as_codes=as_codes, has_steps=high != low
        )

    def integer_range(self, bits: int) -> tuple[int, int] | None:
        """Codes 0 .. 2^bits - 1; kernels multiply codes of up to 8 bits."""
        return (0, 2**bits - 1) if bits <= 8 else None


def train(quantizer: str) -> float:
    """Train a small network with cycles from 2 to 4 bits; return its test accuracy in percent."""
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
