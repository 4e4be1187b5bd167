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
from bitcycle.kernels.prepacked import prepack_grad_input, prepack_output
from bitcycle.quantizers.base import Quantized

REPEATS = 3
HOPELESS = 3.0  # a kernel so many times slower than the best is not tried again
MAX_MACS = 1 << 28  # larger products are measured in part


@dataclass(frozen=True)
class Recurrence:
    """The other product of a recurrent layer: one weight, a few rows at each time step."""

    rows: int
    num_steps: int
    w_shape: tuple[int, int]


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
    recurrence: Recurrence | None = None
    share: float = 1.0  # of the product that is measured


def output_macs(case: Case) -> int:
    """Multiplications of the output product."""
    out = _output_shape(case)
    if isinstance(case.geometry, ConvGeometry):
        if case.geometry.transposed:
            return prod(case.a_shape) * prod(case.w_shape[1:])
        return prod(out) * prod(case.w_shape[1:])
    return prod(out) * case.a_shape[-1]


def capped(case: Case) -> Case:
    """Reduce a product of more than MAX_MACS, so that measuring it takes less time.

    The batch gets smaller. A linear layer with more outputs than rows gets fewer outputs instead,
    so that the costs of the weight and of the products keep their proportion. A product of two
    activations is not reduced.
    """
    macs = output_macs(case)
    if macs <= MAX_MACS or not _has_weight(case):
        return case
    num_out, *inner = case.w_shape
    if isinstance(case.geometry, LinearGeometry) and num_out > prod(case.a_shape[:-1]):
        fewer = max(1, num_out * MAX_MACS // macs)
        return replace(case, w_shape=(fewer, *inner), share=fewer / num_out)
    batch = max(1, case.a_shape[0] * MAX_MACS // macs)
    share = batch / case.a_shape[0]
    return replace(case, a_shape=(batch, *case.a_shape[1:]), share=share)


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
        times = _time_products(case, bf16=bf16)
        if case.recurrence is None:
            return times
        steps = _time_steps(case, case.recurrence, bf16=bf16)
        return [
            {name: seconds + case.share * of_steps[name] for name, seconds in by_kernel.items()}
            for by_kernel, of_steps in zip(times, steps, strict=True)
        ]


def _time_products(case: Case, *, bf16: bool) -> list[dict[str, float]]:
    a = _operand(case, case.a_shape, torch.uint8, case.tops[0])
    w = _operand(case, case.w_shape, torch.int8, case.tops[1], per_channel=_has_weight(case))
    e = _operand(case, _output_shape(case), torch.uint8, case.tops[2])
    w_in = w
    if case.weight_grids == 2 and _has_weight(case):
        w_in = _operand(case, case.w_shape, torch.int8, case.tops[1], per_channel=True, dim=1)
    names = _names(bf16)
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


def _time_steps(case: Case, recurrence: Recurrence, *, bf16: bool) -> list[dict[str, float]]:
    """All time steps: two products with a prepacked weight at each, and one over all of them."""
    num_out, num_in = recurrence.w_shape
    rows, num_steps, names = recurrence.rows, recurrence.num_steps, _names(bf16)
    a = _operand(case, (rows, num_in), torch.uint8, case.tops[0])
    e = _operand(case, (rows, num_out), torch.uint8, case.tops[2])
    w, w_in = (
        _operand(case, recurrence.w_shape, torch.int8, case.tops[1], per_channel=True, dim=dim)
        for dim in (0, case.weight_grids - 1)
    )
    outputs, grads = {}, {}
    for name in names:
        kernel = KERNELS[name]
        outputs[name] = prepack_output(kernel, _as(w, kernel.takes_codes), None)
        grads[name] = prepack_grad_input(kernel, _as(w_in, kernel.takes_codes))
    all_a, all_e = (  # a scale per row: every time step has its own
        _operand(case, (rows * num_steps, width), torch.uint8, top, per_channel=True)
        for width, top in ((num_in, case.tops[0]), (num_out, case.tops[2]))
    )
    w_shape = torch.Size(recurrence.w_shape)
    each: list[Callable[[Kernel, bool], Tensor]] = [
        lambda kernel, codes: outputs[kernel.name](_as(a, codes)),
        lambda kernel, codes: grads[kernel.name](_as(e, codes)),
    ]
    by_step = [
        {name: num_steps * seconds for name, seconds in _time(product, names, case.device).items()}
        for product in each
    ]
    over_all = _time(
        lambda kernel, codes: kernel.grad_weight(
            case.geometry, _as(all_e, codes), _as(all_a, codes), w_shape
        ),
        names,
        case.device,
    )
    return [*by_step, over_all]


def _names(bf16: bool) -> list[str]:
    return ["simulate", "dequantize", "int8", *(["bf16"] if bf16 else [])]


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
