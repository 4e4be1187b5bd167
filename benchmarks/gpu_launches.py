"""Launches and bytes of a linear layer's step on a CUDA device, counted on an emulated one.

    python benchmarks/gpu_launches.py [--tokens 256] [--features 512]

Forward and backward of one layer after its first step. Views launch nothing, and matrix products
are left out: they are the same three in every row, and of float32 in all of them. The launches do
not depend on the sizes; the bytes of a larger layer are estimated from two measurements, because
every tensor is as large as the input, the weight or the output, or constant.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# ruff: noqa: E402, I001 (the device must be there before torch is)
sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.gpu.emulated import counted, is_emulated

import torch
from torch import nn

import bitcycle as bc
from bitcycle.quantizers import QUANTIZERS

ROWS = {
    "float": (None, None),
    "sbm": ("sbm", "FW8/BW8"),
    "fp8": ("fp8", "FWfp8/BWe5m2"),
    "mxfp8": ("mx", "FWmxfp8/BWmxfp8"),
    "nvfp4": ("nvfp4", "FWnvfp4/BWnvfp4"),
}
LARGE = 8192, 4096  # tokens and features of the layer that bytes are estimated for


def count_step(
    quantizer: str | None, precision: str | None, tokens: int, features: int
) -> tuple[int, int]:
    """Launches and bytes of forward and backward, without products."""
    layer = nn.Linear(features, features, device="cuda")
    if quantizer is not None:
        bc.quantize_model(layer, QUANTIZERS[quantizer](), kernel="simulate")
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="launches and bytes of a linear layer's step")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--features", type=int, default=512)
    args = parser.parse_args()
    if not is_emulated():
        raise SystemExit("this needs a CPU build of torch: a real device is not counted")
    t, n = args.tokens, args.features
    tokens, features = LARGE
    print(f"Linear {n} x {n} on {t} tokens, forward and backward, without products and views")
    print(f"{'':8}{'launches':>10}{'MiB':>10}{f'GiB at {tokens} x {features} x {features}':>28}")
    for name, (quantizer, precision) in ROWS.items():
        launches, size = count_step(quantizer, precision, t, n)
        # bytes = a tokens x features + b features^2: one more measurement finds both
        _, more = count_step(quantizer, precision, 2 * t, n)
        per_token = (more - size) / (t * n)
        per_weight = (size - per_token * t * n) / n**2
        large = per_token * tokens * features + per_weight * features**2
        print(f"{name:8}{launches:>10}{size / 2**20:>10.1f}{large / 2**30:>28.1f}")


if __name__ == "__main__":
    main()
