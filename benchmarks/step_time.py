"""One training step of the networks of `bitcycle bench`, with the ratios this package aims at.

    python benchmarks/step_time.py [--workload NAME] [--repeats 10] [--threads 2] [--quick]
    python benchmarks/step_time.py --workload transformer-d512 --bits mxfp8/mxfp8 nvfp4/nvfp4

Prints the table of `bitcycle bench` for `auto` and, below it, the targets and what was reached. The
machine's noise hits all variants alike; only the ratios are meant to be compared.
"""

from __future__ import annotations

import argparse

import torch

from bitcycle.native.allocator import keep_freed_memory
from bitcycle.tables import text_table
from bitcycle_lab.bench import BenchConfig, BenchResult, run_bench
from bitcycle_lab.bench.steps import AUTO

BITS = {"w8a8e8": "FW8/BW8", "3-8/8": "3-8/8", "w4a4e8": "FW4/BW8"}
# The most time of a step at a format, whose products are simulated: on any processor.
FORMAT_TARGETS = {
    ("transformer-d512", "mxfp8/mxfp8"): 1.6,
    ("transformer-d512", "nvfp4/nvfp4"): 1.6,
}
# The most time of a step, of float32's, by instruction set, at the bits above.
TARGETS = {
    "avx2": {
        "transformer-d1024": (0.66, 0.57, 0.50),
        "transformer-d512": (0.72, 0.64, 0.58),
        "resnet20-w64": (0.65, 0.56, 0.48),
        "bottleneck": (0.87, 0.82, 0.78),
        "resnet20-w16": (0.92, 0.87, 0.82),
        "lstm": (0.80, 0.70, 0.62),
    },
    "avx512_vnni": {
        "transformer-d1024": (0.38,),
        "transformer-d512": (0.48,),
        "resnet20-w64": (0.55,),
        "resnet20-w16": (0.80,),
    },
}


def compare(result: BenchResult) -> str:
    """A line per network and bits: the target, and what `auto` reached."""
    instructions = result.processor.instruction_set or ""
    targets = {
        (workload, bits): ratio
        for workload, ratios in TARGETS.get(instructions, {}).items()
        for bits, ratio in zip(BITS, ratios, strict=False)
    }
    body = []
    for (workload, bits), target in {**targets, **FORMAT_TARGETS}.items():
        rows = [
            row
            for row in result.rows
            if (row.workload, row.kernel, row.bits) == (workload, AUTO, bits)
        ]
        if rows and rows[0].ratio is not None:
            missed = "" if rows[0].ratio <= target else "missed"
            body.append((workload, bits, f"{target:.2f}", f"{rows[0].ratio:.2f}", missed))
    if not body:
        return f"no targets for the instruction set {instructions or '(no native library)'}"
    return text_table(("workload", "bits", "target", "reached", ""), body, right=(2, 3))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", action="append", default=[], help="may be repeated")
    parser.add_argument(
        "--bits", nargs="+", default=list(BITS.values()), help="such as FW8/BW8 or mxfp8/mxfp8"
    )
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for each variant")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="small sizes: a check")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    config = BenchConfig(
        workloads=tuple(options.workload),
        kernels=(AUTO,),
        bits=tuple(options.bits),
        repeats=3 if options.quick else options.repeats,
        budget=options.budget,
        is_quick=options.quick,
    )
    result = run_bench(config, say=lambda line: print(line, flush=True))
    print(f"\n{result}\n\n{compare(result)}")


if __name__ == "__main__":
    main()
