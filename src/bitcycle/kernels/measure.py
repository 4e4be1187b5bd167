"""How long each kernel takes for the three products of one layer's shapes, on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bitcycle.kernels.base import KERNELS, Kernel
from bitcycle.kernels.geometry import ConvGeometry, Geometry, LinearGeometry
from bitcycle.quantizers.base import Quantized

REPEATS = 3
HOPELESS = 3.0  # a kernel so many times slower than the best is not tried again
MAX_MACS = 1 << 28  # larger batches are measured in part


@dataclass(frozen=True)
class Case:
    """What a measurement depends on: everything about a product but its numbers."""

    geometry: Geometry
    a_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    is_channels_last: bool
    tops: tuple[int | None, int | None, int | None]  # act, second operand, error; None: float32
    weight_grids: int
    device: str
    num_threads: int


def count_macs(case: Case) -> int:
    """Multiplications of the output product."""
    out = _output_shape(case)
    if isinstance(case.geometry, ConvGeometry):
        if case.geometry.transposed:
            return prod(case.a_shape) * prod(case.w_shape[1:])
        return prod(out) * prod(case.w_shape[1:])
    return prod(out) * case.a_shape[-1]


def capped(case: Case) -> Case:
    """The same with a smaller batch, if all of it would take long; not for two activations."""
    macs = count_macs(case)
    if macs <= MAX_MACS or not _has_weight(case):
        return case
    batch = max(1, case.a_shape[0] * MAX_MACS // macs)
    return replace(case, a_shape=(batch, *case.a_shape[1:]))


def _output_shape(case: Case) -> torch.Size:
    a, w = (torch.empty(shape, device="meta") for shape in (case.a_shape, case.w_shape))
    return case.geometry.output(a, w, None).shape


def time_products(case: Case, *, bf16: bool) -> list[dict[str, float]]:
    """Seconds by kernel, for output, grad_input and grad_weight; the best of interleaved runs.

    A measurement must not change what it measures for: no random generator is used, and modes of
    the caller (autocast, counters of operations) neither change it nor see it.
    """
    with (
        torch.no_grad(),
        torch.autocast(case.device, enabled=False),
        _disable_current_modes(),
    ):
        return _time_products(case, bf16=bf16)


def _time_products(case: Case, *, bf16: bool) -> list[dict[str, float]]:
    a = _operand(case, case.a_shape, torch.uint8, case.tops[0])
    w = _operand(case, case.w_shape, torch.int8, case.tops[1], per_channel=_has_weight(case))
    e = _operand(case, _output_shape(case), torch.uint8, case.tops[2])
    w_in = w
    if case.weight_grids == 2 and _has_weight(case):
        w_in = _operand(case, case.w_shape, torch.int8, case.tops[1], per_channel=True, dim=1)
    names = ["simulate", "dequantize", "int8", *(["bf16"] if bf16 else [])]
    a_shape, w_shape = torch.Size(case.a_shape), torch.Size(case.w_shape)
    products: list[Callable[[Kernel, bool], Tensor]] = [
        lambda kernel, codes: kernel.output(case.geometry, _as(a, codes), _as(w, codes), None),
        lambda kernel, codes: kernel.grad_input(
            case.geometry, _as(e, codes), _as(w_in, codes), a_shape
        ),
        lambda kernel, codes: kernel.grad_weight(
            case.geometry, _as(e, codes), _as(a, codes), w_shape
        ),
    ]
    return [_time(product, names, case.device) for product in products]


def _time(
    product: Callable[[Kernel, bool], Tensor], names: list[str], device: str
) -> dict[str, float]:
    best = dict.fromkeys(names, float("inf"))
    for repeat in range(REPEATS + 1):
        for name in names:
            if repeat > 1 and best[name] > HOPELESS * min(best.values()):
                continue
            kernel = KERNELS[name]
            _wait(device)
            start = time.perf_counter()
            product(kernel, kernel.takes_codes)
            _wait(device)
            if repeat > 0:  # the first run pays for first times
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _has_weight(case: Case) -> bool:
    return isinstance(case.geometry, (LinearGeometry, ConvGeometry))


@dataclass(frozen=True)
class _Both:
    """An operand in both forms, so that no kernel is charged for making it."""

    codes: Quantized
    values: Quantized


def _as(operand: _Both, codes: bool) -> Quantized:
    return operand.codes if codes else operand.values


def _operand(
    case: Case,
    shape: tuple[int, ...],
    carrier: torch.dtype,
    top: int | None,
    *,
    per_channel: bool = False,
    dim: int = 0,
) -> _Both:
    count, device = prod(shape), torch.device(case.device)
    bits = 8 if top is None else top
    numbers = torch.arange(count, device=device).mul_(40503).remainder_(2**bits).view(shape)
    half = 2 ** (bits - 1)
    codes = (numbers - (half if carrier == torch.int8 else 0)).to(carrier)
    if case.is_channels_last and len(shape) == 4:
        codes = codes.contiguous(memory_format=torch.channels_last)
    scale = torch.tensor(2.0**-bits, device=device)
    if per_channel:
        scale = scale.expand([n if d == dim else 1 for d, n in enumerate(shape)]).contiguous()
    offset = -half * scale
    quantized = Quantized(
        scale, offset, codes=codes, half=torch.tensor(float(half), device=device), top=bits
    )
    values = Quantized(values=quantized.dequantize())
    return _Both(values if top is None else quantized, values)
