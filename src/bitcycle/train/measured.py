"""Where a measurement was made and how long it took: what its file says beside the numbers."""

from __future__ import annotations

from typing import Any

from bitcycle.train.directory import environment

MACHINE = ("bitcycle", "torch", "python", "processor", "cpu_capability", "device", "num_cpus")


def machine() -> dict[str, Any]:
    """Processor and versions, without anything that names this machine.

    >>> list(machine()) == list(MACHINE)
    True
    """
    found = environment()
    return {key: found[key] for key in MACHINE}


def measured(seconds: float, *, threads: int) -> dict[str, Any]:
    """The keys that files of measurements have; seconds: wall-clock of all of it."""
    return {"machine": machine(), "threads": threads, "seconds": round(seconds, 3)}
