"""Files as the commands write them, with numbers that nobody measured."""

from __future__ import annotations

from typing import Any

from bitcycle.landscape import Landscape
from bitcycle.range_test import RangeCurve

MACHINE = {
    "bitcycle": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "processor": "AMD EPYC",
    "cpu_capability": "AVX2", "device": "cpu", "num_cpus": 2,
}  # fmt: skip
MACHINE_LINE = (
    "Machine: AMD EPYC, 2 cores, AVX2, torch 2.13.0, python 3.11.7, bitcycle 0.1.0, 1 thread"
)
MADE = {"machine": MACHINE, "threads": 1, "seconds": 75.25}

PROCESSOR = {
    "name": "AMD EPYC", "capability": "AVX2", "has_vnni": False, "has_bf16": False,
    "has_amx": False, "exact_bits": 15, "num_threads": 1, "torch_version": "2.13.0",
}  # fmt: skip


def bench_row(
    kernel: str, seconds: tuple[float, ...], bits: str = "FW8/BW8", **changes: Any
) -> Any:
    return {
        "workload": "lstm", "kernel": kernel, "bits": bits, "seconds": list(seconds),
        "is_once": False, "base": 0.010, "saved_bytes": 2_000_000,
        "layers": {"a": [f"{kernel}/bf16/{kernel}", "asked for"]}, "notes": [], **changes,
    }  # fmt: skip


def bench_file(**changes: Any) -> dict[str, Any]:
    return {
        "processor": PROCESSOR,
        "sizes": {"lstm": "2 LSTM layers"},
        "rows": [
            bench_row("float32", (0.010, 0.011, 0.012, 0.013), bits="", layers={}),
            bench_row("int8", (0.005, 0.006, 0.006, 0.006)),
            bench_row("simulate", (0.030, 0.031, 0.032, 0.033)),
            bench_row("bf16", (0.0105, 0.012, 0.012, 0.013)),
            bench_row("dequantize", (0.5,), is_once=True),
            bench_row("torchao", (), notes=["torchao is not installed"], base=None),
        ],
        "repeats": 4,
        "is_quick": False,
        "budget": 30.0,
        **MADE,
        **changes,
    }


def memory_file() -> dict[str, Any]:
    def row(kernel: str, size: int, codes: float | None) -> dict[str, Any]:
        sizes = {"float32_bytes": 2**20, "bytes": size, "ratio": size / 2**20}
        half = codes and codes / 2
        return {"model": "resnet20", "kernel": kernel, **sizes, "codes_8": codes, "codes_4": half}

    rows = [row("simulate", 2**20, None), row("int8", 2**18, 0.251)]
    sizes = {"resnet20": "width 16; batch 64"}
    return {"benchmark": "saved_memory", **MADE, "sizes": sizes, "rows": rows}


def without_made(data: dict[str, Any]) -> dict[str, Any]:
    """The file as it was before machine and wall-clock were in it."""
    newer = {"machine", "threads", "jobs", "seconds", "model", "data", "backward", "recipe",
             "overrides", "find_upper", "stop_early", "asked", "trained_by", "budget",
             "trained_threads"}  # fmt: skip
    return {key: value for key, value in data.items() if key not in newer}


def range_file(seed: int = 0, *, passes: bool = True, **changes: Any) -> dict[str, Any]:
    top = 60.0 if passes else 12.0
    curve = RangeCurve(
        bits=(2,) * 4 + (3,) * 4, metric=(10.0, 11.0, 10.0, 12.0, 12.0, 30.0, 50.0, top), window=1,
        threshold=20.0, name="accuracy",
    )  # fmt: skip
    plan = {"low": 2, "high": 3, "steps_per_precision": 4, "window": 1, "threshold": 20.0,
            "metric": "accuracy", "reset": False}  # fmt: skip
    found = (
        {"low": 3, "high": 3, "forward": "3"}
        if passes
        else dict.fromkeys(("low", "high", "forward"))
    )
    return {
        "name": "digits-cpt-3-8-8", "seed": seed, "model": "digits_resnet", "data": "digits",
        "backward": 8, "plan": plan, "find_upper": False, "stop_early": False, **found,
        "bitops": 1200, "curve": curve.to_dict(), **MADE, "recipe": "digits-cpt-3-8-8",
        "overrides": [], **changes,
    }  # fmt: skip


def landscape_file(method: str, seed: int, steepness: float, **changes: Any) -> dict[str, Any]:
    grid = (-1.0, -0.5, 0.0, 0.5, 1.0)
    losses = tuple(tuple(0.1 + steepness * (a * a + b * b) for b in grid) for a in grid)
    found = Landscape(
        alphas=grid, betas=grid, losses=losses, label=f"{method}-0123456789-seed{seed}",
        precision="w8a8", num_samples=1000, seed=0, ranges="batch",
        origin={"run": "a", "torch": "2.13.0", "data": "digits", "step": 240, "threads": 1,
                "checkpoint": "last", "shapes": "abc"},
        made={**MADE, "jobs": 2, "model": "digits_resnet", "asked": "high", "overrides": [],
              "trained_by": ["/opt/bin/bitcycle", "study", "run", "digits", "--output", "runs"],
              "trained_threads": 1},
    ).to_dict()  # fmt: skip
    return {**found, **changes}
