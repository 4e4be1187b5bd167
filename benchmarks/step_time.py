"""One training step of the networks of `bitcycle bench`, with the ratios this package aims at.

    python benchmarks/step_time.py [--workload NAME] [--repeats 10] [--threads 2] [--quick]

Prints the table of `bitcycle bench` and, below it, the targets and what was reached. The machine's
noise hits all variants alike; only the ratios are meant to be compared.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch

from bitcycle.bench import BenchConfig, BenchResult, Processor, StepTime, run_bench
from bitcycle.bench.steps import AUTO, AUTOCAST, FLOAT
from bitcycle.tables import text_table


@dataclass(frozen=True)
class Target:
    """The most time of a step at w8a8e8, as a ratio to float32 or to another row."""

    workload: str
    ratio: float
    than: str = FLOAT
    needs_vnni: bool = True  # 8 x 8 bits exact in integers
    needs_bf16: bool = True  # grad_input in bf16: the weight's scales lie on the summed axis

    def presumes(self) -> str:
        """The instructions without which it is out of reach."""
        needs = {"AVX512-VNNI": self.needs_vnni, "AVX512-BF16": self.needs_bf16}
        return ", ".join(name for name, is_needed in needs.items() if is_needed) or "nothing"

    def is_meant_for(self, processor: Processor) -> bool:
        """Whether they were found."""
        has_int8 = processor.exact_bits >= 16
        return (has_int8 or not self.needs_vnni) and (processor.has_bf16 or not self.needs_bf16)


TARGETS = (
    Target("resnet20-w16", 0.80),
    Target("resnet20-w64", 0.55),
    Target("bottleneck", 1.00, than=AUTOCAST),
    Target("transformer-d512", 0.48),
    Target("transformer-d1024", 0.38),
    Target("lstm", 1.00, needs_bf16=False),
)


def compare(result: BenchResult) -> str:
    """The targets, and what `auto` and the fastest kernel reached, a line per bits."""
    body = []
    for target in TARGETS:
        rows = [row for row in result.rows if row.workload == target.workload and row.seconds]
        base = next((row for row in rows if row.kernel == target.than), None)
        for bits in dict.fromkeys(row.bits for row in rows if row.bits):
            ours = [row for row in rows if row.bits == bits]
            best = min(ours, key=lambda row: min(row.seconds))
            auto = next((row for row in ours if row.kernel == AUTO), None)
            body.append(
                (target.workload, bits, f"<= {target.ratio:.2f} x {target.than}", over(auto, base),
                 f"{over(best, base)} ({best.kernel})", target.presumes(),
                 "yes" if target.is_meant_for(result.processor) else "no")
            )  # fmt: skip
    header = ("workload", "bits", "target", "auto", "fastest", "presumes", "found here")
    return text_table(header, body, right=(3,))


def over(row: StepTime | None, base: StepTime | None) -> str:
    """The ratio of two rows' fastest steps."""
    return "-" if row is None or base is None else f"{min(row.seconds) / min(base.seconds):.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", action="append", default=[], help="may be repeated")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for each variant")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="small sizes: a check")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = BenchConfig(
        workloads=tuple(options.workload),
        repeats=options.repeats,
        budget=options.budget,
        is_quick=options.quick,
    )
    result = run_bench(config, say=lambda line: print(line, flush=True))
    print(f"\n{result}\n\n{compare(result)}")


if __name__ == "__main__":
    main()
