"""Coordinate the ranks of a run: rank 0 acts, every rank gets the outcome."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from bitcycle.train.session import Session


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
