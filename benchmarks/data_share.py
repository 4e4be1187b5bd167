"""The share of a CIFAR training step that waits for data: ResNet-20, batch 128, crop and flip.

    python benchmarks/data_share.py [--root DIR] [--steps 30] [--threads 2]

Reads CIFAR-10 below --root; without it, random images of the same number and shape, which cost the
same. The step is float32, the fastest there is on a CPU: any quantized step waits a smaller share.
Exits with 1 when the share is above 5 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch
import torch.nn.functional as F

from bitcycle_lab.data import Batches, ImageArrays, Samples, load_images
from bitcycle_lab.models import build_model

TARGET = 0.05


def random_images() -> ImageArrays:
    """As many bytes as CIFAR-10's training set."""
    generator = torch.Generator().manual_seed(0)
    return ImageArrays(
        pixels=torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=generator),
        targets=torch.randint(0, 10, (50_000,), generator=generator),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        padding=4,
        flip=True,
    )


def measure(samples: Samples, num_steps: int) -> tuple[list[float], list[float]]:
    """Seconds spent on getting each batch, and on training with it."""
    model = build_model("resnet20").to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    batches = Batches(samples, batch_size=128, seed=0)
    waiting, training = [], []
    for step in range(num_steps + 3):
        start = time.perf_counter()
        batch = batches.batch_at(step)
        ready = time.perf_counter()
        F.cross_entropy(model(batch.inputs), batch.targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        waiting.append(ready - start)
        training.append(time.perf_counter() - ready)
    return waiting[3:], training[3:]  # the first steps warm up


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", help="folder with CIFAR-10; default: random images")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    samples = load_images("cifar10", options.root).train if options.root else random_images()
    waiting, training = measure(samples, options.steps)
    share = sum(waiting) / (sum(waiting) + sum(training))
    print(f"batch    {statistics.median(waiting) * 1e3:8.2f} ms (median of {len(waiting)})")
    print(f"step     {statistics.median(training) * 1e3:8.2f} ms")
    print(f"waiting  {share:8.1%} of the time (target: below {TARGET:.0%})")
    return int(share > TARGET)


if __name__ == "__main__":
    sys.exit(main())
