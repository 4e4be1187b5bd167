"""`bitcycle bench`: time a training step with every kernel on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_EXAMPLES = """examples:
  bitcycle bench --quick
  bitcycle bench --workload transformer-d512 --workload lstm --bits FW8/BW8 FW4/BW8
  bitcycle bench --kernels bf16-autocast auto --json speed.json
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "bench",
        help="time a training step on this machine with every kernel, against float32",
        description="Time training steps (forward, backward, SGD) of several networks on this CPU\n"
        "with every kernel, and compare them with float32.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workload", action="append", default=[], metavar="NAME",
        help="resnet20-w16, resnet20-w64, bottleneck, transformer-d512, transformer-d1024, lstm, "
        "gcn (default: all); may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--kernels", nargs="+", default=[], metavar="NAME",
        help="in addition to float32: bf16-autocast, simulate, dequantize, bf16, int8, auto, and "
        "torchao, brevitas, qpytorch if installed (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--bits", nargs="+", default=[], metavar="BITS",
        help="such as FW7/BW8 or w4a4e8 (default: FW8/BW8, and FW7/BW8 on a processor whose int8 "
        "products are not exact at 8 x 8 bits)",
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, help="per step (default 10; 3 with --quick)")
    parser.add_argument(
        "--budget", type=float, default=30.0, metavar="SECONDS",
        help="per kernel and network; one too slow for three repeats is timed once (default 30)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, help="of torch (default: torch's own choice)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes, half a minute: only checks that everything runs",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the result as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark, print the table, write the file."""
    import torch

    from bitcycle.bench import BenchConfig, run_bench
    from bitcycle.files import write_json
    from bitcycle.train.progress import make_reporter
    from bitcycle.train.run_directory import measurement_info

    default = 3 if arguments.quick else 10
    config = BenchConfig(
        workloads=tuple(arguments.workload),
        kernels=tuple(arguments.kernels),
        bits=tuple(arguments.bits),
        repeats=default if arguments.repeats is None else arguments.repeats,
        budget=arguments.budget,
        is_quick=arguments.quick,
    )
    target = None if arguments.json is None else Path(arguments.json).expanduser()
    if target is not None and not target.parent.is_dir():
        raise ValueError(f"--json {target}: there is no folder {target.parent}")
    if arguments.threads is not None:
        if arguments.threads < 1:
            raise ValueError(f"--threads must be at least 1, got {arguments.threads}")
        torch.set_num_threads(arguments.threads)
    steps = config.count_steps()
    with make_reporter("auto", log_file=None, title="bench", total_steps=steps) as reporter:
        result = run_bench(config, say=reporter.say, advance=reporter.advance)
    print(f"\n{result}")
    if target is not None:
        info = measurement_info(result.seconds or 0.0, threads=result.processor.num_threads)
        write_json(target, {**result.to_dict(), **info})
        print(f"\nwrote {target}")
    return 0
