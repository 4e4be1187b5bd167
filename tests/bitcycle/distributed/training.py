"""A small training run that one process or several can do, wrapped in any of the ways there are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import bitcycle as bc

BATCH = 64  # samples of a step over all processes
EXACT = {"sync_ranges": True, "error_rounding": "nearest"}


class Block(nn.Module):
    """(N, d) -> (N, d) without batch statistics."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.relu, self.down = (
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.relu(self.up(self.norm(x))))


def perceptron(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """(N, 8) -> (N, 4), with fixed weights. 7 and 15 units: shards of unequal size."""
    torch.manual_seed(0)
    layers = nn.Linear(8, 15), Block(15), Block(15), nn.Linear(15, 7), nn.ReLU(), nn.Linear(7, 4)
    return nn.Sequential(*layers).to(dtype)


def plain(model: nn.Module) -> nn.Module:
    return model


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    """FSDP2 as its documentation has it: the blocks, then the rest."""
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, **options)
    return fully_shard(model, **options)


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": plain,
    "ddp": DistributedDataParallel,
    "fsdp2": sharded,
}


def place() -> tuple[int, int]:
    """Rank and number of processes."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def batch_at(step: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """This process's part of the batch of a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 8, generator=generator)
    y = x[:, :4].argmax(1)
    rank, size = place()
    own = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    return x[own].to(dtype), y[own]


class Run:
    """Model, optimizer, scheduler and meter of a run."""

    def __init__(
        self,
        way: str,
        *,
        total_steps: int,
        quantizer: dict[str, Any],
        forward: Any = "CR:3-8:2",
        dtype: str = "float32",
        is_converted_last: bool = False,
        kernel: str = "auto",
        is_autocast: bool = False,
    ) -> None:
        self.dtype, self.is_autocast = getattr(torch, dtype), is_autocast
        rules = bc.quantizers.SBM(**quantizer)
        self.inner = model = perceptron(self.dtype)
        if not is_converted_last:
            bc.quantize_model(model, rules, kernel=kernel)
        self.meter = bc.CostMeter(model, torch.zeros(2, 8, dtype=self.dtype))
        self.model = WAYS[way](model)
        if is_converted_last:
            bc.quantize_model(self.model, rules, kernel=kernel)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.bits = bc.PrecisionScheduler(
            self.model, forward=forward, backward=6, total_steps=total_steps
        )
        self.losses: list[float] = []
        self.seen: list[str] = []

    def train(self, num_steps: int) -> None:
        """Steps from where the scheduler is."""
        for _ in range(num_steps):
            x, y = batch_at(self.bits.step_count, self.dtype)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.is_autocast):
                loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.meter.step()
            self.seen.append(str(self.bits.precision))
            mean = over_all(loss.detach())
            self.losses.append(mean)
            self.bits.step({"loss": mean} if self.bits.needs else None)

    def report(self) -> dict[str, Any]:
        """All that tests compare."""
        return {
            "loss": self.losses,
            "bits": self.seen,
            "bitops": self.meter.bitops,
            "weights": digest(whole(p) for _, p in sorted(self.inner.named_parameters())),
            "ranges": digest(b for n, b in sorted(self.inner.named_buffers()) if "act_range" in n),
        }


def over_all(loss: Tensor) -> float:
    """The mean over processes."""
    loss = loss.clone()
    if place()[1] > 1:
        dist.all_reduce(loss)
    return loss.item() / place()[1]


def whole(x: Tensor) -> Tensor:
    """A sharded tensor put together."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def digest(tensors: Any) -> str:
    """Equal for tensors that are equal to the bit."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


def train(way: str, *, num_steps: int, **options: Any) -> dict[str, Any]:
    """A whole run."""
    run = Run(way, total_steps=num_steps, **options)
    run.train(num_steps)
    return run.report()
