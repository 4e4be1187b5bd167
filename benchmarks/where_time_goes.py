"""Where a training step spends its time: encoding, the three products, and everything else.

    python benchmarks/where_time_goes.py [--workload NAME] [--kernels simulate native auto]
                                         [--bits FW8/BW8] [--steps 10] [--threads 2] [--quick]

Stages are timed inside the converted layers, in the fastest of the steps. "library" is the part of
the three products that is spent in products of the native library; those that fell back to float32
are not in it. Kernels are measured one after the other: compare the stages of a line. Ratios
between kernels are what `bitcycle bench` measures.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from bitcycle.bench.steps import FLOAT, TrainStep, Variant
from bitcycle.bench.workloads import WORKLOADS
from bitcycle.kernels import ConvGeometry, LinearGeometry, MatMulGeometry
from bitcycle.kernels.base import MATMULS
from bitcycle.native import products
from bitcycle.native.allocator import keep_freed_memory
from bitcycle.nn import product
from bitcycle.precision import Precision
from bitcycle.tables import text_table

ENCODE = {
    "encode act": ("encode_input",),
    "encode weight": ("encode_second", "encode_weight_for_grad_input"),
    "encode error": ("encode_error",),
}
LIBRARY = ("gemm", "gemm_folded", "conv_output", "conv_grad_input", "conv_grad_weight")
INSIDE = "library"
GEOMETRIES = (LinearGeometry, MatMulGeometry, ConvGeometry)


class Clock:
    """Seconds by stage; a stage inside itself counts once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: set[str] = set()

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, on the clock."""

        def call(*args: Any, **options: Any) -> Any:
            if stage in self._open:
                return function(*args, **options)
            self._open.add(stage)
            start = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds[stage] += time.perf_counter() - start
                self._open.discard(stage)

        return call


@contextmanager
def on_the_clock(clock: Clock) -> Iterator[None]:
    """Every stage of a converted layer's product, timed."""
    places = [(stage, product, name) for stage, names in ENCODE.items() for name in names]
    places += [(matmul, geometry, matmul) for geometry in GEOMETRIES for matmul in MATMULS]
    places += [(INSIDE, products, name) for name in LIBRARY]
    with ExitStack() as stack:
        for stage, owner, name in places:
            timed = clock.timed(stage, getattr(owner, name))
            stack.enter_context(patch.object(owner, name, timed))
        yield


def measure(step: TrainStep, steps: int) -> tuple[float, dict[str, float]]:
    """The fastest step and its stages."""
    for _ in range(3):
        step()
    best: tuple[float, dict[str, float]] = (float("inf"), {})
    for _ in range(steps):
        clock = Clock()
        with on_the_clock(clock):
            start = time.perf_counter()
            step()
            total = time.perf_counter() - start
        best = min(best, (total, dict(clock.seconds)), key=lambda found: found[0])
    return best


def main() -> None:
    """One table per workload."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS))
    parser.add_argument("--kernels", nargs="+", default=["simulate", "native", "auto"])
    parser.add_argument("--bits", nargs="+", default=["FW8/BW8"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="small sizes, one step: a check")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    for name in arguments.workload or WORKLOADS:
        torch.manual_seed(0)
        load = WORKLOADS[name](arguments.quick)
        variants = [Variant(FLOAT)] + [
            Variant(kernel, Precision.parse(bits))
            for kernel in arguments.kernels
            for bits in arguments.bits
        ]
        rows = []
        steps = 1 if arguments.quick else arguments.steps
        columns = [*ENCODE, *MATMULS]
        for variant in variants:
            total, seconds = measure(TrainStep(load, variant), steps)
            inside = [seconds.get(stage, 0.0) for stage in columns]
            cells = [*inside, total - sum(inside), seconds.get(INSIDE, 0.0)]
            rows.append((str(variant), *(f"{1e3 * s:.1f}" for s in [total, *cells])))
        header = ("kernel", "step", *columns, "else", INSIDE)
        print(f"\n{name}: {load.size}; milliseconds, {arguments.threads} threads")
        print(text_table(header, rows, right=tuple(range(1, len(header)))), flush=True)


if __name__ == "__main__":
    main()
