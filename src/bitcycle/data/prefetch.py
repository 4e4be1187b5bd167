"""Run jobs ahead of their use in background threads, and hand the results over in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def in_order(jobs: Iterable[Callable[[], T]], *, depth: int) -> Iterator[T]:
    """The jobs' results in the order of the jobs, up to `depth` of them computed ahead.

    `depth=0` runs each job when its result is asked for. A job's error is raised at its turn.

    >>> list(in_order([lambda: "a", lambda: "b"], depth=4))
    ['a', 'b']
    """
    if depth == 0:
        for job in jobs:
            yield job()
        return
    pool = ThreadPoolExecutor(max_workers=depth, thread_name_prefix="bitcycle-prefetch")
    pending: deque[Future[T]] = deque()
    try:
        for job in jobs:
            pending.append(pool.submit(job))
            if len(pending) > depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # also when the consumer stops early
        pool.shutdown(wait=True, cancel_futures=True)
