"""Which kernel `auto` chooses on a device, by kind of layer, size and bits, and why.

Layers are converted and run once, so that the table is what a training run would get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from torch import nn

from bitcycle.bits import PlainBits
from bitcycle.convert import quantize_model
from bitcycle.formats.catalogue import list_formats
from bitcycle.kernels.base import AUTO
from bitcycle.kernels.choice import LAYERS, TOPS
from bitcycle.model_precision import set_precision
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.precision import Precision
from bitcycle.role_schedules import quantizer_for
from bitcycle_lab.bench.tune import TuneCase, cases
from bitcycle_lab.doctor.check import Check, Device

MANY_BITS = 16
# of the sizes that the table is measured at, the third largest; a GPU's first large one is the
# second of some layers
_TYPICAL = {"cpu": -3, "cuda": -2}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The kernel of one kind of layer at one size for some bits."""

    layer: str
    macs: int
    rows: int
    bits: tuple[str, ...]
    kernel: str
    reason: str


def integer_bits() -> tuple[int, ...]:
    """The most bits that tables distinguish, and more than codes have."""
    return (*TOPS, MANY_BITS)


def all_bits() -> list[PlainBits]:
    """Integers and formats."""
    return [*integer_bits(), *list_formats()]


def precision_of(bits: PlainBits) -> Precision:
    """These bits for weights and activations; errors have the format, or at least 8 bits."""
    error = max(bits, 8) if isinstance(bits, int) else bits
    return Precision(weight=bits, act=bits, error=error)


def choose_kernels(
    device: Device, advance: Callable[[], None] = lambda: None
) -> tuple[list[Choice], list[Check]]:
    """The kernel for each kind of layer at a small and at a typical size, and what failed."""
    found: list[Choice] = []
    failed: list[Check] = []
    for case in _sizes(device.torch):
        choices: list[tuple[str, str, str]] = []
        for bits in all_bits():
            decide = partial(_decide, case, bits, device.torch, choices)
            check = device.run(AUTO, case.layer, str(bits), decide)
            if check.outcome != "passed":
                choices.append((str(bits), "-", check.reason))
            if check.outcome == "failed":
                failed.append(check)
        for (kernel, reason), group in groupby(choices, key=lambda each: each[1:]):
            names = tuple(name for name, *_ in group)
            found.append(
                Choice(
                    layer=case.layer,
                    macs=case.macs,
                    rows=case.rows,
                    bits=names,
                    kernel=kernel,
                    reason=reason,
                )
            )
        advance()
    return found, failed


def count_sizes(device: torch.device) -> int:
    """The number of calls of `advance`."""
    return len(list(_sizes(device)))


def _sizes(device: torch.device) -> Iterator[TuneCase]:
    every = cases(device)
    for layer in LAYERS:
        own = [case for case in every if case.layer == layer]
        if own:
            yield from (own[0], own[_TYPICAL[device.type]])


@torch.no_grad()
def _decide(
    case: TuneCase, bits: PlainBits, device: torch.device, found: list[tuple[str, str, str]]
) -> None:
    """Add the bits, the kernel after a forward pass, and the reason for it."""
    layer, inputs = case.build()
    model = quantize_model(nn.Sequential(layer).to(device), quantizer_for([bits]))
    set_precision(model.to(device).train(), precision_of(bits))  # a MatMul has no parameters
    model[0](*(x.to(device) for x in inputs))  # type: ignore[index]
    converted = next(each for each in model.modules() if isinstance(each, QuantizedLayer))
    if converted.kernel.is_undecided:  # no role has integers or bf16
        kernel, reason = "simulate", "the values are multiplied in float32"
    else:
        kernel, reason = converted.kernel.name, converted.kernel_reason.removeprefix("auto: ")
    found.append((str(bits), kernel, reason))
