"""Where a training step spends its time: rounding, products, calls of the library, the rest.

    python benchmarks/where_time_goes.py [--workload NAME] [--kernels simulate native auto]
                                         [--bits FW8/BW8] [--steps 10] [--threads 2] [--quick]

Stages are timed inside the converted layers, in the fastest of the steps. Where the native library
computes a direction of a layer as a whole, that is one stage: "library forward" or "library
backward". Elsewhere operands are encoded, then multiplied; "time steps" are the products of a
recurrence. A stage that no line has is not shown. Kernels are measured one after the other: compare
the stages of a line. Ratios between kernels are what `bitcycle bench` measures.
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

from bitcycle.kernels.base import MATMULS, Multiply
from bitcycle.kernels.native import ConvProducts, LinearProducts, MatMulProducts, NativeKernel
from bitcycle.kernels.simulate import FloatKernel, FloatProducts
from bitcycle.native.allocator import keep_freed_memory
from bitcycle.native.layer import LayerProduct
from bitcycle.nn import product, recurrent_product
from bitcycle.precision import Precision
from bitcycle.tables import text_table
from bitcycle_lab.bench.steps import FLOAT, TrainStep, Variant
from bitcycle_lab.bench.workloads import WORKLOADS

ENCODE = {
    "encode act": ("encode_input",),
    "encode weight": ("encode_second", "encode_for_grad_input", "round_for"),
    "encode error": ("encode_error",),
    "encode for grad_weight": ("encode_for_grad_weight",),  # where each matmul rounds for itself
}
LIBRARY = {"library forward": ("forward",), "library backward": ("backward", "recompute")}
PRODUCTS = (FloatProducts, LinearProducts, MatMulProducts, ConvProducts)
TIME_STEPS = "time steps"
STAGES = (*ENCODE, *MATMULS, TIME_STEPS, *LIBRARY)
SHOWN = 5e-5  # seconds: less is 0.0


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

    def timed_steps(self, prepack: Callable[..., Multiply]) -> Callable[..., Multiply]:
        """`Kernel.prepack`, with the products of time steps on the clock."""
        return lambda *args: self.timed(TIME_STEPS, prepack(*args))


@contextmanager
def on_the_clock(clock: Clock) -> Iterator[None]:
    """Every stage of a converted layer's product, timed."""
    places: list[tuple[str, Any, str]] = [
        (stage, owner, name)
        for stages, owners in ((ENCODE, (product, recurrent_product)), (LIBRARY, (LayerProduct,)))
        for stage, names in stages.items()
        for name in names
        for owner in owners
    ]
    places += [(matmul, owner, matmul) for owner in PRODUCTS for matmul in MATMULS]
    with ExitStack() as stack:
        for kernel in (FloatKernel, NativeKernel):
            steps = clock.timed_steps(kernel.prepack)
            stack.enter_context(patch.object(kernel, "prepack", steps))
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
        steps = 1 if arguments.quick else arguments.steps
        found = [(str(each), *measure(TrainStep(load, each), steps)) for each in variants]
        columns = [each for each in STAGES if any(s.get(each, 0) >= SHOWN for _, _, s in found)]
        rows = []
        for variant, total, seconds in found:
            inside = [seconds.get(stage, 0.0) for stage in columns]
            cells = [total, *inside, total - sum(seconds.values())]
            rows.append((variant, *(f"{1e3 * s:.1f}" for s in cells)))
        header = ("kernel", "step", *columns, "else")
        print(f"\n{name}: {load.size}; milliseconds, {arguments.threads} threads")
        print(text_table(header, rows, right=tuple(range(1, len(header)))), flush=True)


if __name__ == "__main__":
    main()
