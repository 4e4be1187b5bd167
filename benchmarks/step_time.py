"""One training step: best float32 against quantized kernels, interleaved in one process.

    python benchmarks/step_time.py [--repeats 15] [--threads 2] [--only transformer512]

Prints, per workload, milliseconds (lower quartile over interleaved repeats) and the ratio to
float32. The machine's noise hits all columns alike; only the ratios are meant to be compared.
"""

from __future__ import annotations

import argparse
import copy
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.models import build_model
from bitcycle.ops import fused
from bitcycle.tables import text_table

Step = Callable[[], None]


@dataclass(frozen=True)
class Workload:
    """A float model in its fastest layout, its batch, and a loss of its output."""

    model: nn.Module
    inputs: Tensor
    loss: Callable[[Tensor], Tensor]


class Block(nn.Module):
    """A pre-norm transformer block whose two attention products are modules."""

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.qk, self.pv = bc.MatMul(), bc.MatMul()

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )  # each (batch, heads, length, width / heads)
        scores = self.qk(q, k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mixed = self.pv(scores.softmax(-1), v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def resnet20(width: int) -> Workload:
    """CIFAR ResNet-20, batch 64, 32x32, channels-last."""
    model = build_model("resnet20", width=width).to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    target = torch.randint(10, (64,))
    return Workload(model, images, lambda out: F.cross_entropy(out, target))


def transformer(width: int) -> Workload:
    """Two blocks, 8 sequences of 256 tokens."""
    model = nn.Sequential(Block(width), Block(width))
    tokens = torch.randn(8, 256, width)
    return Workload(model, tokens, lambda out: out.square().mean())


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "resnet20-width16": lambda: resnet20(16),
    "resnet20-width64": lambda: resnet20(64),
    "transformer512": lambda: transformer(512),
}


def float_step(load: Workload) -> Step:
    """Forward, backward and SGD in float32."""
    model = copy.deepcopy(load.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        load.loss(model(load.inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def quantized_step(load: Workload, kernel: str) -> Step:
    """The same at W8A8E8, with the precision scheduler stepped as a user would."""
    model = bc.quantize_model(copy.deepcopy(load.model), kernel=kernel)
    bits = bc.PrecisionScheduler(model, forward=8, backward=8, total_steps=10**6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        load.loss(model(load.inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()
        bits.step()

    return step


def measure(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Lower quartile of seconds per step, all columns interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():  # compile, allocate, fill caches
        step()
        step()
    for _ in range(repeats):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begin)
    return {name: sorted(times)[len(times) // 4] for name, times in seconds.items()}


def main() -> None:
    """Measure the chosen workloads and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=WORKLOADS, action="append")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    fused.WARM_UP = 0  # compile in the first step, which is not measured
    print(f"torch {torch.__version__}, {options.threads} threads, {platform.machine()}, "
          f"cpu capability {torch.backends.cpu.get_cpu_capability()}")  # fmt: skip
    rows = []
    for name in options.only or WORKLOADS:
        load = WORKLOADS[name]()
        steps = {"float32": float_step(load), "simulate": quantized_step(load, "simulate")}
        times = measure(steps, options.repeats)
        base = times["float32"]
        rows.append((name, *(f"{1e3 * t:.1f} ms ({t / base:.2f}x)" for t in times.values())))
    print(text_table(("workload", "float32", "simulate 8/8"), rows, right=(1, 2)))


if __name__ == "__main__":
    main()
