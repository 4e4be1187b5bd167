"""One training step in this checkout and in another, in turn: did a change cost or save time?

    git worktree add ../before HEAD~1 && python ../before/src/bitcycle/native/build.py
    python benchmarks/two_checkouts.py ../before [--workload digits resnet20-w16] [--bits FW8/BW8]
                                       [--kernels native bf16-autocast] [--rounds 5] [--threads 2]

Processes of the two checkouts alternate. Each times all kernels and float32 step by step in turn,
and the ratio is of lower quartiles inside one process, so that the load of the machine hits both
sides alike. Prints the median ratio over rounds for each checkout, and one by the other. `digits`
is the network of the recipe digits, batch 64; the others are those of `bitcycle bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
STEPS = {"digits": 150, "transformer-d1024": 6, "resnet20-w64": 8}
NUM_STEPS = 15  # of the others


def measure(workload: str, kernels: list[str], bits: str, threads: int) -> dict[str, float]:
    """Lower quartiles of the step's seconds, by kernel, in this process."""
    import torch
    import torch.nn.functional as F

    from bitcycle.native.allocator import keep_freed_memory
    from bitcycle_lab.bench.steps import FLOAT, TrainStep, Variant, is_ours, parse_bits
    from bitcycle_lab.bench.workloads import WORKLOADS, Workload
    from bitcycle_lab.models import build_model

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    keep_freed_memory()
    if workload == "digits":
        target = torch.randint(10, (64,))
        made = Workload(
            model=build_model("digits_resnet"),
            inputs=(torch.randn(64, 1, 8, 8),),
            loss=lambda logits: F.cross_entropy(logits, target),
            size="the network of the recipe digits, batch 64",
        )
    else:
        made = WORKLOADS[workload](False)
    variants = [
        Variant(FLOAT),
        *(Variant(k, parse_bits(bits) if is_ours(k) else None) for k in kernels),
    ]
    steps = {variant.kernel: TrainStep(made, variant) for variant in variants}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(3 + STEPS.get(workload, NUM_STEPS)):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number >= 3:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.quantiles(each, n=4)[0] for name, each in seconds.items()}


def run_in(checkout: Path, options: argparse.Namespace, workload: str) -> dict[str, float]:
    """`measure` in a process of a checkout: ratios to float32."""
    words = ["--measure", "--workload", workload, "--kernels", *options.kernels]
    words += ["--bits", options.bits, "--threads", str(options.threads)]
    environment = os.environ | {
        "PYTHONPATH": str(checkout / "src"),
        "OMP_NUM_THREADS": str(options.threads),
    }
    done = subprocess.run(
        [sys.executable, __file__, *words], env=environment, stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    seconds = json.loads(done.stdout.splitlines()[-1])
    return {name: each / seconds["float32"] for name, each in seconds.items() if name != "float32"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", type=Path, nargs="?", help="a checkout with its library built")
    parser.add_argument("--workload", nargs="+", default=["digits", "resnet20-w16"])
    parser.add_argument("--kernels", nargs="+", default=["native"])
    parser.add_argument("--bits", default="FW8/BW8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(
            json.dumps(measure(*options.workload, options.kernels, options.bits, options.threads))
        )
        return
    if options.other is None:
        parser.error("give the folder of another checkout")
    print(f"{'workload':20} {'kernel':16} {'other':>7} {'this':>7} {'by':>7}   of float32's time")
    for workload in options.workload:
        rounds = [
            (run_in(options.other.resolve(), options, workload), run_in(HERE, options, workload))
            for _ in range(options.rounds)
        ]
        for kernel in options.kernels:
            other, this = (statistics.median(r[i][kernel] for r in rounds) for i in (0, 1))
            by = f"{this / other:.3f}"
            print(f"{workload:20} {kernel:16} {other:7.3f} {this:7.3f} {by:>7}", flush=True)


if __name__ == "__main__":
    main()
