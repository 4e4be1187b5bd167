"""Launches and bytes of a linear layer's step on a CUDA device, counted on an emulated one.

    python benchmarks/gpu_launches.py [--tokens 64] [--features 128]

Forward and backward of one layer after its first step, with plain torch (BITCYCLE_GPU=0) and with
Triton kernels, which are interpreted. Views launch nothing. What the three products launch is left
out where they are torch's; integer products of kernel `gpu` count, as it lays out their operands.
The device passes for one that multiplies FP8, MX and NVFP4. The launches do not depend on the
sizes; the bytes of a larger layer are estimated from two measurements, because every tensor is as
large as the input, the weight or the output, or constant. An operator of torch has the bytes that
it reads and writes, a Triton kernel those of its tensor arguments, once each.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# ruff: noqa: E402, I001 (the device must be there before torch is)
sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.gpu.emulated import counted, is_emulated

import torch
from torch import nn

import bitcycle as bc
from bitcycle.gpu import driver
from bitcycle.quantizers import QUANTIZERS

ROWS = {
    "float": (None, None),
    "sbm": ("sbm", "FW8/BW8"),
    "fp8": ("fp8", "FWfp8/BWe5m2"),
    "mxfp8": ("mx", "FWmxfp8/BWmxfp8"),
    "nvfp4": ("nvfp4", "FWnvfp4/BWnvfp4"),
}
# what rounds, and the kernel that multiplies
WAYS = {"torch": ("0", "simulate"), "triton": ("1", "simulate"), "triton, gpu": ("1", "gpu")}
LARGE = 8192, 4096  # tokens and features of the layer that bytes are estimated for


def count_step(row: str, way: str, tokens: int, features: int) -> tuple[int, int]:
    """Launches and bytes of forward and backward, without torch's products."""
    quantizer, precision = ROWS[row]
    os.environ[driver.SWITCH], kernel = WAYS[way]
    driver.is_ready.cache_clear()
    layer = nn.Linear(features, features, device="cuda")
    if quantizer is not None:
        bc.quantize_model(layer, QUANTIZERS[quantizer](), kernel=kernel)
        bc.set_precision(layer, precision)
    x = torch.randn(tokens, features, device="cuda", requires_grad=True)
    error = torch.randn(tokens, features, device="cuda")
    layer(x).backward(error)
    layer.zero_grad()
    x.grad = None
    with counted() as counts:
        layer(x).backward(error)
    assert (counts.uploads, counts.reads) == (0, 0)
    return counts.without_products()


def estimate(row: str, way: str, tokens: int, features: int) -> tuple[int, float]:
    """Launches, and bytes of the large layer."""
    # bytes = a tokens x features + b features^2: two measurements find both
    launches, size = count_step(row, way, tokens, features)
    _, more = count_step(row, way, 2 * tokens, features)
    per_token = (more - size) / (tokens * features)
    per_weight = (size - per_token * tokens * features) / features**2
    many, wide = LARGE
    return launches, per_token * many * wide + per_weight * wide**2


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="launches and bytes of a linear layer's step")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--features", type=int, default=128)
    args = parser.parse_args()
    if not is_emulated():
        raise SystemExit("this needs a CPU build of torch: a real device is not counted")
    driver.device_class = lambda index: "sm_100"
    size = f"{LARGE[0]} x {LARGE[1]} x {LARGE[1]}"
    print("forward and backward of a linear layer, without torch's products and views")
    print(f"{'':8}{'rounding, kernel':>18}{'launches':>10}{f'GiB at {size}':>28}")
    for row, (quantizer, _) in ROWS.items():
        for way in WAYS:
            if quantizer is None and way != "torch":
                continue  # nothing is rounded
            launches, large = estimate(row, way, args.tokens, args.features)
            print(f"{row:8}{way:>18}{launches:>10}{large / 2**30:>28.1f}")


if __name__ == "__main__":
    main()
