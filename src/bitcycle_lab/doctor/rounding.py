"""Fused rounding against plain torch on the same device: every quantizer's grid, every format.

The fused functions (the native library, Triton kernels) promise equality to the last bit. Under a
dispatch mode they leave the work to torch's operations, which are the reference.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bitcycle.formats.catalogue import Format, list_formats
from bitcycle.formats.rounding import hadamard, round_to, to_bf16
from bitcycle.gpu import driver
from bitcycle.kernels.geometry import LinearGeometry
from bitcycle.native.library import library, missing_reason
from bitcycle.ops.noise import noise_key
from bitcycle.quantizers.base import QUANTIZERS, Quantized, Quantizer
from bitcycle.quantizers.blocks import FP8, MX, NVFP4, BlockQuantizer
from bitcycle_lab.doctor.check import Check, Device, Outcome
from bitcycle_lab.doctor.choices import integer_bits

_Result = tuple[Tensor, ...]
_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {  # of `round_to`, by kind of format
    "float": ({},),
    "fp8": ({}, {"granularity": "row"}, {"granularity": "block"}),
    "mx": ({}, {"scale": "rceil"}),
    "nvfp4": ({}, {"tensor_scale": False}),
}
_BLOCK_RULES: dict[str, tuple[BlockQuantizer, ...]] = {
    "fp8": (FP8(), FP8(granularity="row"), FP8(granularity="block")),
    "mx": (MX(), MX(scale="rceil")),
    "nvfp4": (NVFP4(), NVFP4(weight_tiles=False)),
}
_PLAIN = ("wageubn",)  # quantizers that have no GPU kernels


class PlainTorch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it no fused function runs."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The operation itself."""
        return func(*args, **(kwargs or {}))


def rounded_by(device: torch.device) -> str:
    """What rounds on this device."""
    return "Triton" if device.type == "cuda" else "native library"


def reason_against_fusion(device: torch.device) -> str | None:
    """Why torch's operations round on this device; None if fused functions do."""
    if device.type == "cuda":
        return driver.missing_reason()
    return missing_reason() if library() is None else None


def check_rounding(device: Device, advance: Callable[[], None] = lambda: None) -> list[Check]:
    """A check per quantizer and bits, and one per format."""
    by = rounded_by(device.torch)
    if why := reason_against_fusion(device.torch):
        reason = f"plain torch rounds here: {why}"
        return [Check(by=by, what="rounding", outcome="not run", reason=reason)]
    found = []
    tensors = _tensors(device.torch)
    for what, bits, functions in _cases():
        before = driver.num_launches
        found.append(device.run(by, what, bits, functools.partial(_compare, functions, tensors)))
        if device.torch.type == "cuda" and driver.num_launches == before:
            found[-1] = _not_compared(found[-1])
        advance()
    return found


def _not_compared(check: Check) -> Check:
    """A check that launched no GPU kernel: torch was compared with itself."""
    if check.outcome != "passed":
        return check
    outcome: Outcome = "not run" if check.bits.split()[0] in _PLAIN else "failed"
    return replace(check, outcome=outcome, reason="no GPU kernel was launched; plain torch rounds")


def count_rounding() -> int:
    """The number of calls of `advance`."""
    return sum(1 for _ in _cases())


_Function = Callable[[Tensor], _Result]


def _cases() -> Iterator[tuple[str, str, list[_Function]]]:
    """What is rounded, the bits, and functions of a tensor."""
    for name, quantizer in QUANTIZERS.items():
        rule = quantizer()
        for bits in integer_bits():
            yield "grids", f"{name} {bits}", _of_quantizer(rule, bits)
    for each in list_formats():
        yield "formats", each.name, _of_format(each)
    yield "formats", "hadamard", [_hadamard]
    yield "noise", "key", [lambda x: (noise_key(_clock(x)),)]
    yield "formats", "cast to bf16", [lambda x: (to_bf16(x),)]


def _of_quantizer(rule: Quantizer, bits: int) -> list[_Function]:
    """A function per role, with codes and without."""

    def make(role: str, as_codes: bool) -> _Function:
        def rounded(x: Tensor) -> _Result:
            levels = torch.full((), 2**bits - 1, dtype=torch.int32, device=x.device)
            if role == "grad":
                return (rule.encode_grad(x, levels, _key(x)),)
            if role == "error":
                first, second, within = rule.quantize_error(x, levels, _key(x), as_codes)
                return *_numbers(first), *_numbers(second), *within
            keep = (0,) if role == "weight" else ()
            made, within = rule.quantize(role, x, levels, keep, as_codes=as_codes)
            return *_numbers(made), *within

        return rounded

    has_codes = rule.integer_range(bits) is not None
    forms = (False, True) if has_codes else (False,)
    return [make(role, form) for role in sorted(rule.roles) for form in forms]


def _of_format(each: Format) -> list[_Function]:
    def make(dim: int, options: dict[str, Any]) -> _Function:
        return lambda x: (round_to(x, each, dim, seed=5, **options),)

    roundings = ({"rounding": "nearest"}, {"rounding": "stochastic"})
    return [
        make(dim, {**options, **rounding})
        for options in _OPTIONS[each.kind]
        for dim in (0, 1)
        for rounding in roundings
    ] + list(_for_tensor_cores(each))


def _for_tensor_cores(each: Format) -> Iterator[_Function]:
    """The bytes of a matrix of the format, for a product over either axis."""
    stored_as = each.stored_as
    if stored_as is None or not hasattr(torch.nn.functional, "scaled_mm"):
        return

    def make(matmul: str, rule: BlockQuantizer, is_second: bool) -> _Function:
        def rounded(x: Tensor) -> _Result:
            x = x.flatten(1)
            numbers = torch.stack(
                [torch.full((), n, dtype=torch.int32, device=x.device) for n in each.numbers]
            )
            view = LinearGeometry().operand_view(matmul, "w" if is_second else "a", x.shape)
            signs = None if is_second or view.dim == 1 else rule.hadamard_signs(x.device)
            made = rule.round_for_tensor_cores(x, numbers, view, stored_as, _key(x), signs)
            tensors = (made.elements, made.scales, made.tensor_scale)
            flat = (t.contiguous().reshape(-1) for t in tensors if t is not None)
            return tuple(t.view(torch.uint8) for t in flat)

        return rounded

    for rule in _BLOCK_RULES[each.kind]:
        yield from (make(matmul, rule, is_second=False) for matmul in ("output", "grad_weight"))
        yield from (make(matmul, rule, is_second=True) for matmul in ("output", "grad_input"))


def _hadamard(x: Tensor) -> _Result:
    signs = torch.ones(16, device=x.device)
    signs[1::3] = -1.0
    return (hadamard(x.float(), 1, signs),)


def _numbers(q: Quantized) -> _Result:
    return tuple(x for x in (q.values, q.codes, q.scale, q.offset, q.half) if x is not None)


def _key(x: Tensor) -> Tensor:
    # its launch is none of what it is a key for
    with PlainTorch():  # type: ignore[no-untyped-call]
        return noise_key(_clock(x))


def _clock(x: Tensor) -> Tensor:
    return 11 + torch.arange(3, dtype=torch.int32, device=x.device)


def _tensors(device: torch.device) -> list[Tensor]:
    """Tensors of several sizes, layouts and ranges; ties, zeros, constants and half precision."""
    generator = torch.Generator().manual_seed(0)
    long, small = (torch.randn(*n, generator=generator) for n in ((70, 257), (33, 19)))
    maps = torch.randn(4, 18, 7, 9, generator=generator)
    found = [
        long,
        small.t(),
        1e-30 * small,
        1e30 * small.relu(),
        torch.randint(-40, 40, (33, 32), generator=generator) / 8,
        torch.full((5, 33), -0.7),
        torch.zeros(5, 33),
        maps.to(memory_format=torch.channels_last),
        long.to(torch.bfloat16),
    ]
    return [x.to(device) for x in found]


@torch.no_grad()
def _compare(functions: list[_Function], tensors: list[Tensor]) -> None:
    """Raise an ArithmeticError for the first result that is not that of plain torch."""
    for x in tensors:
        for function in functions:
            made = function(x)
            with PlainTorch():  # type: ignore[no-untyped-call]
                expected = function(x)
            wrong = sum(map(_count_other, made, expected))
            if len(made) != len(expected) or wrong:
                total = sum(each.numel() for each in expected)
                raise ArithmeticError(
                    f"{wrong} of {total} numbers differ from plain torch's, for a tensor "
                    f"{tuple(x.shape)} of {x.dtype}"
                )


def _count_other(made: Tensor, expected: Tensor) -> int:
    if made.shape != expected.shape or made.dtype != expected.dtype:
        return expected.numel()
    is_same = (made == expected) | (made.isnan() & expected.isnan())
    return int((~is_same).sum())
