"""`bitcycle bench`: time a training step with every kernel on this machine."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

_EXAMPLES = """examples:
  bitcycle bench --quick
  bitcycle bench --workload transformer-d512 --workload lstm --bits FW8/BW8 FW4/BW8
  bitcycle bench --kernels simulate auto --bits FW8/BW8 3-8/8 --json speed.json
  bitcycle bench --workload transformer-d512 --kernels auto --bits bf16/bf16 nvfp4/nvfp4
  bitcycle bench --tune kernels.csv
  BITCYCLE_KERNEL_TABLE=kernels.csv bitcycle train digits-cpt-3-8-8
"""

BUSY = 0.5  # processes that wait for a core, above which times are not to be trusted


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "bench",
        help="time a training step on this machine against its bits, and against float32",
        description="Time training steps (forward, backward, SGD) of several networks on this CPU\n"
        "at 2 to 8 bits and over a CPT cycle, and compare them with float32.\n"
        "--tune measures instead the table from which kernel 'auto' chooses.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--workload", action="append", default=[], metavar="NAME",
        help="resnet20-w16, resnet20-w64, mobilenetv2, digits, bottleneck, transformer-d512, "
        "transformer-d1024, lstm, gcn (default: all); may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--kernels", nargs="+", default=[], metavar="NAME",
        help="in addition to float32: bf16-autocast, simulate, bf16, native, auto, "
        "auto-in-autocast, and torchao, brevitas, qpytorch if installed (default: all but bf16 and "
        "native, and what is installed)",
    )  # fmt: skip
    parser.add_argument(
        "--bits", nargs="+", default=[], metavar="BITS",
        help="such as FW7/BW8 or w4a4e8, 3-8/8 for a cosine cycle, or formats: nvfp4/nvfp4, "
        "bf16/bf16 (default: FW2/BW8 to FW8/BW8 and 3-8/8; simulate only FW8/BW8)",
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
    parser.add_argument(
        "--tune", metavar="FILE",
        help="measure which kernel is fastest for every kind and size of layer (5 minutes on a "
        "quiet machine) and write the table; the environment variable BITCYCLE_KERNEL_TABLE=FILE "
        "makes 'auto' choose from it. Rows of other processors in FILE are kept",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu",
        help="what --tune measures: the processor, or the GPU (default cpu)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the benchmark or measure the table of kernels, print it, write the file."""
    import torch

    from bitcycle.native.allocator import keep_freed_memory

    if arguments.threads is not None:
        if arguments.threads < 1:
            raise ValueError(f"--threads must be at least 1, got {arguments.threads}")
        torch.set_num_threads(arguments.threads)
    if arguments.device != "cpu" and not arguments.tune:
        raise ValueError("--device needs --tune: steps of networks are timed on the CPU")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here")
    is_kept = keep_freed_memory()  # of all variants, float32 too
    return _tune(arguments) if arguments.tune else _bench(arguments, is_kept)


def _bench(arguments: argparse.Namespace, is_kept: bool) -> int:
    from bitcycle.files import write_json
    from bitcycle_lab.bench import BenchConfig, run_bench
    from bitcycle_lab.train.progress import make_reporter
    from bitcycle_lab.train.run_directory import measurement_info

    default = 3 if arguments.quick else 10
    config = BenchConfig(
        workloads=tuple(arguments.workload),
        kernels=tuple(arguments.kernels),
        bits=tuple(arguments.bits),
        repeats=default if arguments.repeats is None else arguments.repeats,
        budget=arguments.budget,
        is_quick=arguments.quick,
    )
    target = None if arguments.json is None else _target(arguments.json, "--json")
    steps = config.count_steps()
    with make_reporter("auto", log_file=None, title="bench", total_steps=steps) as reporter:
        result = run_bench(config, say=reporter.say, advance=reporter.advance)
    result = replace(result, keeps_freed_memory=is_kept)
    print(f"\n{result}")
    if target is not None:
        info = measurement_info(result.seconds or 0.0, threads=result.processor.num_threads)
        write_json(target, {"kind": "speed", **result.to_dict(), **info})
        print(f"\nwrote {target}")
    return 0


def _tune(arguments: argparse.Namespace) -> int:
    import torch

    from bitcycle.kernels.choice import TABLE_SWITCH, read_table, table_text
    from bitcycle_lab.bench.tune import count_cases, measure_table, write_table
    from bitcycle_lab.train.progress import make_reporter

    target = _target(arguments.tune, "--tune")
    for option in ("workload", "kernels", "bits", "repeats", "json"):
        if getattr(arguments, option):
            raise ValueError(
                f"--{option} has no effect with --tune: it measures all kinds of layers"
            )
    if target.exists():
        read_table(target)  # nothing but a table is replaced
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > BUSY and not arguments.quick:
        print(f"this machine is busy (load {load:.1f}): a table measured now is not reliable")
    device = torch.device(arguments.device)
    total = count_cases(device, is_quick=arguments.quick)
    with make_reporter("auto", log_file=None, title="tune", total_steps=total) as reporter:
        rows = measure_table(
            device, is_quick=arguments.quick, say=reporter.say, advance=reporter.advance
        )
    write_table(target, rows, device)
    print(f"\n{table_text(rows)}\nwrote {target}; use it with {TABLE_SWITCH}={target}")
    return 0


def _target(name: str, option: str) -> Path:
    target = Path(name).expanduser()
    if not target.parent.is_dir():
        raise ValueError(f"{option} {target}: there is no folder {target.parent}")
    return target
