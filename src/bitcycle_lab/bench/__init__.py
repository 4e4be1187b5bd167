"""Time a training step of several networks with every kernel on this machine."""

from bitcycle_lab.bench.result import (
    BenchResult,
    Processor,
    StepTime,
    Timing,
    find_processor,
    time_interleaved,
)
from bitcycle_lab.bench.run import BenchConfig, run_bench
from bitcycle_lab.bench.workloads import WORKLOADS

__all__ = [
    "WORKLOADS",
    "BenchConfig",
    "BenchResult",
    "Processor",
    "StepTime",
    "Timing",
    "find_processor",
    "run_bench",
    "time_interleaved",
]
