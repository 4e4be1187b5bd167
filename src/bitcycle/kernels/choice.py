"""Choose the kernel of a layer.

"auto" depends on the layer's largest bits, its shapes, the processor and a measurement, and never
on the data. The chosen kernel's name is part of a run's state; `make_kernel` makes the kernel from
it.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

from bitcycle.kernels.base import Kernel
from bitcycle.kernels.geometry import Geometry
from bitcycle.kernels.integer import exact_bits
from bitcycle.kernels.measure import Case, Recurrence, capped, output_macs, time_products
from bitcycle.kernels.mixed import UNDECIDED, make_kernel

MAX_CODE_BITS = 8
SMALL = 1 << 20  # multiplications below which no kernel gains more than it costs to call
TOLERANCE = 1.1  # a kernel that saves memory may be slower than `simulate` by this factor


@functools.cache
def has_bf16(device_type: str) -> bool:
    """Whether bfloat16 products are faster than float32 ones there."""
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    if device_type != "cpu":
        return False
    try:  # oneDNN also says yes where it only emulates bf16, so the instructions are asked for too
        has_instructions = (
            torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        )
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported() and has_instructions)
    except (AttributeError, RuntimeError):  # a build without oneDNN, another processor
        return False


def requested_kernel(name: str, *, weight_grids: int, device_type: str) -> tuple[Kernel, str]:
    """The kernel for a requested name, and why; "auto" is decided when shapes are known.

    >>> kernel, reason = requested_kernel("simulate", weight_grids=1, device_type="cpu")
    >>> kernel.name, reason
    ('simulate', 'asked for')
    """
    kernel = make_kernel(name)
    device_type = "cpu" if device_type == "meta" else device_type  # where it will most likely be
    exact = exact_bits(device_type)  # tried here at the latest: a compiled graph cannot
    if kernel is UNDECIDED:
        return kernel, "auto: decided at the first training step with bits"
    if name == "int8" and weight_grids == 1 and has_bf16(device_type):
        reason = "asked for; grad_input in bf16: the weight's scales lie on the axis it sums over"
        return make_kernel("int8/bf16/int8"), reason
    if name == "int8" and exact < 2 * MAX_CODE_BITS:
        reason = f"asked for; exact here up to {exact} bits of both operands together, else float32"
        return kernel, reason
    if name == "bf16" and not has_bf16(device_type):
        return kernel, "asked for; this processor has no bf16 arithmetic: expect it to be slow"
    return kernel, "asked for"


def decide_kernel(
    geometry: Geometry,
    a: torch.Tensor,
    w: torch.Tensor,
    *,
    tops: tuple[int | None, int | None, int | None],
    weight_grids: int,
    recurrence: Recurrence | None = None,
) -> tuple[Kernel, str]:
    """What "auto" means for a product of these shapes; tops: bits of act, second operand, error.

    recurrence: the product of the hidden state, which takes the same kernel.
    """
    simulate = make_kernel("simulate")
    if a.dtype == torch.float64 or w.dtype == torch.float64:
        return simulate, "auto: float64"
    if tops[0] is None or tops[1] is None:
        return simulate, "auto: an operand is float32"
    if max(tops[0], tops[1]) > MAX_CODE_BITS:
        return simulate, f"auto: more than {MAX_CODE_BITS} bits"
    case = Case(
        geometry=geometry,
        a_shape=tuple(a.shape),
        w_shape=tuple(w.shape),
        is_channels_last=_is_channels_last(a),
        tops=tops,
        weight_grids=weight_grids,
        device=a.device.type,
        num_threads=torch.get_num_threads(),
        recurrence=recurrence,
    )
    if output_macs(case) + _macs_of(recurrence) < SMALL:
        return simulate, "auto: too small to gain"
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return _by_rule(tops, case.device)
    return _by_measurement(capped(case))


def _macs_of(recurrence: Recurrence | None) -> int:
    if recurrence is None:
        return 0
    num_out, num_in = recurrence.w_shape
    return recurrence.rows * recurrence.num_steps * num_out * num_in


def _is_channels_last(x: torch.Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def _by_rule(tops: tuple[int | None, int | None, int | None], device: str) -> tuple[Kernel, str]:
    """Without a clock, so that processes on machines of one kind agree."""
    bits = [8 if top is None else top for top in tops]
    if sum(sorted(bits)[1:]) > exact_bits(device):
        return make_kernel("simulate"), "auto: no exact int8 arithmetic for these bits"
    name = "int8/bf16/int8" if has_bf16(device) else "int8"
    return make_kernel(name), "auto: int8 arithmetic found (several processes: not measured)"


@functools.cache
def _by_measurement(case: Case) -> tuple[Kernel, str]:
    """The fastest kernel for each product, if all three together beat or equal `simulate`."""
    times = time_products(case, bf16=has_bf16(case.device))
    simulated = sum(by_kernel["simulate"] for by_kernel in times)
    chosen = []
    for by_kernel in times:
        coded = {name: t for name, t in by_kernel.items() if name != "simulate"}
        chosen.append(min(coded, key=lambda name: coded[name]))
    coded_time = sum(by_kernel[name] for by_kernel, name in zip(times, chosen, strict=True))
    figures = f"products take {coded_time / simulated:.2f} of simulate's time"
    if coded_time > TOLERANCE * simulated:
        return make_kernel("simulate"), f"auto: measured, {'/'.join(chosen)} {figures}"
    return make_kernel("/".join(chosen)), f"auto: measured, {figures}"
