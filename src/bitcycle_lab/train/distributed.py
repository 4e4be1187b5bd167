"""Coordinate the ranks of a run: rank 0 writes, metrics are summed over all ranks."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from bitcycle_lab.train.session import Session


@cache  # once per process
def close_group_at_exit() -> None:
    """Close the process group when Python exits, so that gloo cannot abort the interpreter.

    A thread of gloo releases the tensors of the last collective, for which it needs the GIL. One
    that asks for the GIL while the interpreter is finalized calls std::terminate.
    """

    def close() -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
            time.sleep(0.2)  # without the GIL

    atexit.register(close)


def on_main(session: Session, action: Callable[[], object]) -> None:
    """Run a function on rank 0 and raise its error on every rank. Every rank must call this."""
    failure: Exception | None = None
    if session.is_main:
        try:
            action()
        except Exception as error:
            failure = error
    if session.world_size > 1:
        shared = [failure]
        dist.broadcast_object_list(shared, src=0)
        failure = failure or shared[0]
    if failure is not None:
        raise failure


def broadcast_buffers(session: Session) -> None:
    """Copy norm statistics and activation ranges from rank 0 to all ranks before an evaluation.

    DDP broadcasts the same buffers at the next training step, and the checkpoint stores those of
    rank 0: an evaluation of the checkpoint gives the same metrics. Every rank must call this.
    """
    if session.world_size == 1:
        return
    weights = {name for name, _ in session.model.named_parameters(remove_duplicate=False)}
    for name, value in session.model.state_dict().items():
        if name not in weights:
            dist.broadcast(value, src=0)


def sum_over_ranks(values: Tensor, world_size: int) -> list[float]:
    """Sum each value over all ranks. Every rank must call this with as many values."""
    if world_size > 1:
        dist.all_reduce(values)
    numbers: list[float] = values.tolist()
    return numbers


def reduce_sums(
    sums: Mapping[str, Tensor], device: torch.device, world_size: int
) -> dict[str, float]:
    """Sum metrics over all ranks by name; a rank without a batch adds nothing."""
    names = sorted(sums)
    if world_size > 1:
        gathered: list[list[str]] = [[] for _ in range(world_size)]
        dist.all_gather_object(gathered, names)
        names = sorted({name for part in gathered for name in part})
    zero = torch.zeros((), dtype=torch.float64, device=device)
    values = torch.stack([sums.get(name, zero).double() for name in names])
    return dict(zip(names, sum_over_ranks(values, world_size), strict=True))
