"""What this processor can do that decides which kernel is fast."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bitcycle.kernels import exact_bits, has_bf16


@dataclass(frozen=True, kw_only=True)
class Processor:
    """The features found, and the threads that torch uses; `str()` is two lines."""

    name: str
    capability: str  # the instruction set that torch's own loops use
    has_vnni: bool  # AVX512: four 8-bit products per 32-bit sum in one instruction
    has_bf16: bool  # bfloat16 products faster than float32 ones
    has_amx: bool
    exact_bits: int  # the most bits two int8 operands may have together
    num_threads: int
    torch_version: str

    def __str__(self) -> str:
        found = {"VNNI": self.has_vnni, "BF16": self.has_bf16, "AMX": self.has_amx}
        features = ", ".join(f"{name} {'yes' if has else 'no'}" for name, has in found.items())
        plural = "" if self.num_threads == 1 else "s"
        return (
            f"{self.name}, {self.num_threads} thread{plural}, torch {self.torch_version}\n"
            f"capability {self.capability}, {features}, int8 products exact up to "
            f"{self.exact_bits} bits of both operands together"
        )


def find_processor() -> Processor:
    """Of the machine this runs on."""
    return Processor(
        name=_name(),
        capability=torch.backends.cpu.get_cpu_capability(),
        has_vnni=_asks("_is_vnni_supported"),
        has_bf16=has_bf16("cpu"),
        has_amx=_asks("_is_amx_tile_supported"),
        exact_bits=exact_bits("cpu"),
        num_threads=torch.get_num_threads(),
        torch_version=torch.__version__,
    )


def _name() -> str:
    ask: Callable[[], dict[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)  # newer torch
    capabilities = ask()
    return str(capabilities.get("cpu_name") or platform.processor() or platform.machine())


def _asks(question: str) -> bool:
    return bool(getattr(torch.cpu, question, bool)())
