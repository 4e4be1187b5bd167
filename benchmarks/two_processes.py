"""What a second process gains, and what synchronized ranges cost: each way of a step in turn.

    python benchmarks/two_processes.py [--model resnet20] [--batch 64] [--steps 5] [--rounds 9]

Two processes of one thread each (so two cores), over gloo on this machine. The global batch is the
same for one process and for two; while one trains alone, the other waits. Every round runs `steps`
steps each way; figures are medians over rounds of the median step, with the range over rounds.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import bitcycle as bc
from bitcycle_lab.models import build_model

WARM_UP = 3


@dataclass(frozen=True)
class Variant:
    """A way to train a step."""

    way: str  # alone, DDP or FSDP2
    precision: str
    sync_ranges: bool = False

    @property
    def num_processes(self) -> int:
        """Those that train."""
        return 1 if self.way == "alone" else 2

    def __str__(self) -> str:
        ranges = ", synchronized ranges" if self.sync_ranges else ""
        return f"{self.way}, {self.precision}{ranges}"


VARIANTS = [
    Variant("alone", "fp32"),
    Variant("DDP", "fp32"),
    Variant("FSDP2", "fp32"),
    Variant("alone", "w4a4e8"),
    Variant("DDP", "w4a4e8"),
    Variant("DDP", "w4a4e8", sync_ranges=True),
    Variant("FSDP2", "w4a4e8"),
    Variant("FSDP2", "w4a4e8", sync_ranges=True),
]


class Trainer:
    """A variant in this process: its model, its part of the batch, its times."""

    def __init__(self, variant: Variant, options: Any) -> None:
        self.variant, self.rank = variant, dist.get_rank()
        torch.manual_seed(0)
        model = build_model(options.model)  # FSDP2 takes no channels_last weights
        self.num_parameters = sum(p.numel() for p in model.parameters())
        self.num_layers = 0
        if variant.precision != "fp32":
            rules = bc.quantizers.SBM(sync_ranges=variant.sync_ranges)
            bc.quantize_model(model, rules, kernel=options.kernel)
            bc.set_precision(model, variant.precision)
            self.num_layers = sum(row.is_converted for row in bc.audit(model).rows)
        self.model = _wrap(model, variant.way)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        own = options.batch // variant.num_processes
        generator = torch.Generator().manual_seed(self.rank)
        self.x = torch.randn(own, 3, 32, 32, generator=generator)
        self.y = torch.randint(10, (own,), generator=generator)
        self.times: list[float] = []

    def steps(self, num_steps: int) -> None:
        """Train, together or with the other process waiting, and keep the median time."""
        dist.barrier()
        if self.rank < self.variant.num_processes:
            self.times.append(statistics.median(self._step() for _ in range(num_steps)))
        dist.barrier()

    def _step(self) -> float:
        start = time.perf_counter()
        F.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start


def _wrap(model: nn.Module, way: str) -> nn.Module:
    if way == "DDP":
        return DistributedDataParallel(model)
    if way == "FSDP2":
        for child in model.children():
            if next(child.parameters(), None) is not None:
                fully_shard(child)
        fully_shard(model)
    return model


def work(rank: int, options: Any, port: int) -> None:
    """One of the two processes; the first prints."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    trainers = [Trainer(variant, options) for variant in VARIANTS]
    for trainer in trainers:
        trainer.steps(WARM_UP)
        trainer.times.clear()
    for _ in range(options.rounds):
        for trainer in trainers:
            trainer.steps(options.steps)
    if rank == 0:
        show(trainers, options)
    dist.destroy_process_group()


def show(trainers: list[Trainer], options: Any) -> None:
    """The table."""
    num_layers = trainers[-1].num_layers
    print(f"{options.model}, global batch {options.batch}, kernel {options.kernel}, one thread per "
          f"process; medians of {options.rounds} rounds of {options.steps} steps")  # fmt: skip
    print(f"gradients {trainers[0].num_parameters * 4 / 1e6:.2f} MB a step; synchronized ranges "
          f"{2 * num_layers} messages of 8 bytes a step ({num_layers} layers)")  # fmt: skip
    alone: dict[str, float] = {}
    for trainer in trainers:
        seconds, precision = statistics.median(trainer.times), trainer.variant.precision
        alone.setdefault(precision, seconds)
        spread = f"({1e3 * min(trainer.times):.1f} to {1e3 * max(trainer.times):.1f})"
        print(f"{trainer.variant!s:36} {1e3 * seconds:8.1f} ms {spread:20} "
              f"{alone[precision] / seconds:5.2f} x alone")  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="resnet20", help="a model for images of 32 x 32")
    parser.add_argument("--kernel", default="simulate")
    parser.add_argument("--batch", type=int, default=64, help="over both processes")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if options.batch % 2:
        parser.error(f"--batch {options.batch} must be even: two processes share it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (options, port), nprocs=2)


if __name__ == "__main__":
    main()
