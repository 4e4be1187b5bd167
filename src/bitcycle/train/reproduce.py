"""What makes a run repeatable beside its configuration: seeds, generators, threads, determinism."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from bitcycle.ops.noise import hash_ints


def seed_everything(seed: int) -> None:
    """torch (initialization, dropout), numpy and Python, for code that uses them."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def seed_of_process(seed: int, rank: int) -> int:
    """What a process draws with: the run's seed in the first, others of their own.

    >>> seed_of_process(7, 0)
    7
    """
    return seed if rank == 0 else hash_ints(seed, rank) % 2**32


def random_state() -> dict[str, Any]:
    """Every generator a step may draw from."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position),
                  int(has_gauss), float(gauss)],
        "python": random.getstate(),
    }  # fmt: skip


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Set them all back."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    random.setstate(state["python"])


@contextmanager
def kept_settings() -> Iterator[None]:
    """A run sets threads and determinism for itself; the caller's come back after it."""
    threads = torch.get_num_threads()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warn_only)
