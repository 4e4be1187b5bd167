"""Speed on this machine: one training step of several networks, by every kernel, interleaved."""

from bitcycle.bench.result import (
    BenchResult,
    Processor,
    Row,
    Timing,
    find_processor,
    time_interleaved,
)
from bitcycle.bench.run import BenchConfig, run_bench
from bitcycle.bench.workloads import WORKLOADS

__all__ = [
    "WORKLOADS",
    "BenchConfig",
    "BenchResult",
    "Processor",
    "Row",
    "Timing",
    "find_processor",
    "run_bench",
    "time_interleaved",
]
