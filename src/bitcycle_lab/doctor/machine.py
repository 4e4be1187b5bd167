"""What this machine has: processor, compiler, native library, GPU, Triton, versions, switches."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from bitcycle.gpu import driver
from bitcycle.native import build
from bitcycle.native.library import library, missing_reason
from bitcycle.version import VERSION
from bitcycle_lab.bench.result import find_processor
from bitcycle_lab.doctor.check import first_line

PREFIX = "BITCYCLE_"
OTHER_SWITCHES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TRITON_INTERPRET")
PATIENCE = 10.0  # seconds for a program that says its version


def describe_machine() -> dict[str, Any]:
    """Everything, as JSON types."""
    return {
        "versions": {
            "bitcycle": VERSION,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "triton": _version("triton"),
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
        },
        "system": f"{platform.system()} {platform.machine()}",
        "processor": {**asdict(find_processor()), "num_cpus": os.cpu_count()},
        "native_library": {"is_loaded": library() is not None, "reason": missing_reason()},
        "compiler": _compiler(),
        "gpus": _gpus(),
        "no_gpu": reason_without_gpu(),
        "driver": _driver_version(),
        "triton_drives_a_device": driver.is_ready(),
        "no_triton": driver.missing_reason(),
        "tf32": {
            "matmul": torch.get_float32_matmul_precision() != "highest",
            "convolution": torch.backends.cudnn.allow_tf32,
        },
        "switches": {
            name: _without_folder(value)
            for name, value in sorted(os.environ.items())
            if name.startswith(PREFIX) or name in OTHER_SWITCHES
        },
    }


def _without_folder(value: str) -> str:
    """The last part of a path; a folder may have any name, with spaces too.

    >>> _without_folder("tables of Ada/kernels.csv")
    '…/kernels.csv'
    """
    parts = value.replace(os.sep, "/").rstrip("/").rsplit("/", 1)
    return f"…/{parts[1]}" if len(parts) > 1 else value


def reason_without_gpu() -> str | None:
    """Why torch sees no GPU; None if it sees one."""
    if torch.cuda.is_available():
        return None
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch is built for the CPU only"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:
        return first_line(error)
    return "torch sees no device"


def _gpus() -> list[dict[str, Any]]:
    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "num_multiprocessors": properties.multi_processor_count,
            }
        )
    return found


def _driver_version() -> str | None:
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return _first_line_of(query) if torch.cuda.is_available() else None


def _compiler() -> str | None:
    try:
        return _first_line_of((*build.find_compiler(), "--version"))
    except build.BuildError:
        return None


def _first_line_of(command: Sequence[str]) -> str | None:
    """The first line that a program prints; None if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.strip().splitlines()), None)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine_lines(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What `describe_machine` found, as a title and a text per line."""
    versions, processor = machine["versions"], machine["processor"]
    native = machine["native_library"]
    library_text = processor["instruction_set"] if native["is_loaded"] else "missing"
    if native["reason"]:
        library_text += f": {native['reason']}"
    features = ("VNNI", "BF16", "AMX")
    has = ", ".join(
        f"{name} {'yes' if processor[f'has_{name.lower()}'] else 'no'}" for name in features
    )
    threads, cpus = processor["num_threads"], processor["num_cpus"]
    lines = [
        ("versions", ", ".join(f"{name} {v}" for name, v in versions.items() if v is not None)),
        ("system", machine["system"]),
        ("processor", f"{processor['name']}, {cpus} CPUs, threads of torch: {threads}"),
        ("", f"{processor['capability']}, {has}"),
        ("library", library_text),
        ("compiler", machine["compiler"] or "none found"),
    ]
    for index, gpu in enumerate(machine["gpus"]):
        memory = f"{gpu['memory_bytes'] / 2**30:.1f} GiB"
        text = f"{gpu['name']}, compute capability {gpu['capability']}, {memory}"
        lines.append((f"cuda:{index}", text))
    if machine["no_gpu"]:
        lines.append(("GPU", f"none: {machine['no_gpu']}"))
    else:
        lines.append(("driver", machine["driver"] or "unknown (no nvidia-smi)"))
    why = machine["no_triton"]
    if why and machine["no_gpu"]:
        why = "not used: it is for GPUs"
    lines.append(("Triton", why.removeprefix("Triton ") if why else "drives a device"))
    switches = " ".join(f"{name}={value}" for name, value in machine["switches"].items())
    lines.append(("switches", switches or "none"))
    return lines
