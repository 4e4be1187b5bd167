"""CIFAR-10 ResNet-8 trained with `native`, against other seeds of `simulate`.

    python benchmarks/same_training.py --data.root FOLDER [--steps 300] [--forward CR:3-8:4]

Kernels compute the same products with other rounding, so accuracies must agree as closely as those
of different seeds do, and the losses of the first steps closely.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from bitcycle.tables import text_table
from bitcycle_lab.recipes import recipe
from bitcycle_lab.train.config import TrackingConfig
from bitcycle_lab.train.result import RunResult
from bitcycle_lab.train.run import run
from bitcycle_lab.train.run_directory import RunDirectory

NAME = "cifar10-resnet8-cpt-3-8-8-small"
SEEDS = (0, 1, 2)
FIRST = 5  # losses shown


def train(arguments: argparse.Namespace, kernel: str, seed: int, output: str) -> RunResult:
    """One run with a line of metrics per step."""
    config = recipe(NAME)
    config = replace(
        config,
        name=f"{kernel}",
        seed=seed,
        steps=arguments.steps,
        threads=arguments.threads,
        output=output,
        data=replace(config.data, root=arguments.data_root, subset=arguments.subset),
        precision=replace(config.precision, kernel=kernel, forward=arguments.forward),
        tracking=TrackingConfig(log_every=1, tensorboard=False),
        eval=replace(config.eval, every=0),
    )
    return run(config)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data.root", dest="data_root", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--subset", type=int, default=10_000)
    parser.add_argument("--forward", default="CR:3-8:4")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    cases = [*(("simulate", seed) for seed in SEEDS), ("native", SEEDS[0])]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kernel, seed in cases:
            result = train(arguments, kernel, seed, folder)
            lines = RunDirectory(Path(result.directory)).read_metrics()
            losses = [f"{line['loss']:.5f}" for line in lines if "loss" in line][:FIRST]
            rows.append(
                (kernel, str(seed), f"{result.value:.2f}", *losses, f"{result.seconds:.0f}")
            )
            print(f"{kernel} seed {seed}: {result.value:.2f} %", flush=True)
    steps = [f"loss {step}" for step in range(FIRST)]
    header = ("kernel", "seed", "test accuracy %", *steps, "seconds")
    print(f"\n{NAME} with forward {arguments.forward}, {arguments.steps} steps\n")
    print(text_table(header, rows, right=tuple(range(1, len(header)))))


if __name__ == "__main__":
    main()
