"""What one process does for all: its failure is everyone's, so that nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from bitcycle.train.session import Session


def on_main(session: Session, action: Callable[[], object]) -> None:
    """Called by every process: the main one acts, the others wait; what it raises, all raise."""
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


def share_buffers(session: Session) -> None:
    """Called by every process before an evaluation: norm statistics and ranges of the main one.

    Training with many processes takes them from there as well, a step later; the checkpoint, and
    so every later evaluation, has those.
    """
    if session.world_size == 1:
        return
    weights = {name for name, _ in session.model.named_parameters(remove_duplicate=False)}
    for name, value in session.model.state_dict().items():
        if name not in weights:
            dist.broadcast(value, src=0)
