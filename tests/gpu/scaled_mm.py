"""`scaled_mm` of the emulated device: as strict as CUDA, and as slow as a definition.

The rules are those of cuBLAS and of torch for NVIDIA's GPUs, which are stricter than torch's meta
functions. Values are decoded by tables and the result is summed in float64.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType

from bitcycle.gpu import driver

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
PLAIN, SWIZZLED = int(SwizzleType.NO_SWIZZLE.value), int(SwizzleType.SWIZZLE_32_4_4.value)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
FLOAT4 = torch.float4_e2m1fn_x2
FROM = {"TensorWise": 89, "RowWise": 89, "BlockWise1x32": 100, "BlockWise1x16": 100}


def check(condition: bool, rule: str) -> None:
    if not condition:
        raise ValueError(f"scaled_mm on CUDA: {rule}")


def scaled_mm(
    a: Tensor, b: Tensor, scale_a: list[Tensor], recipe_a: list[int], swizzle_a: list[int],
    scale_b: list[Tensor], recipe_b: list[int], swizzle_b: list[int], bias: Tensor | None,
    out_dtype: torch.dtype | None, contraction_dim: Any = (), use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """a (M, K) x b (K, N), as `torch._scaled_mm_v2`."""
    assert out_dtype is not None
    check(a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0], "two matrices that fit")
    check(a.stride(1) == 1 and b.stride(0) == 1, "a row-major, b column-major")
    check(a.shape[1] % 16 == 0 and b.shape[0] % 16 == 0 and b.shape[1] % 16 == 0, "K, N: of 16")
    check(not (a.dtype == b.dtype == torch.float8_e5m2), "not e5m2 by e5m2")
    check(a.data_ptr() % 16 == 0 and b.data_ptr() % 16 == 0, "aligned to 16 bytes")
    if bias is not None:
        check(out_dtype is not torch.float32, "no bias with float32 results")
        check(bias.dtype is out_dtype and bias.shape == b.shape[1:], "a bias of the result's dtype")
    kinds = [ScalingType(recipe_a[0]).name, ScalingType(recipe_b[0]).name]
    _check_class(kinds)
    _check_elements(kinds[0], a.dtype, b.dtype)
    sides = (
        _decode(a, scale_a, recipe_a, swizzle_a, is_second=False),
        _decode(b.t(), scale_b, recipe_b, swizzle_b, is_second=True),
    )
    result = sides[0] @ sides[1].T
    if bias is not None:
        result = result + _host(bias).double().numpy()
    out = torch.empty(a.shape[0], b.shape[1], dtype=out_dtype, device=a.device)
    _host(out).copy_(torch.from_numpy(result).to(out_dtype))
    return out


def _check_class(kinds: list[str]) -> None:
    """What a compute capability multiplies."""
    number = int(driver.device_class(0).removeprefix("sm_"))
    if "128" in "".join(kinds):
        check(90 <= number < 100, "blocks of 128 on sm_90 only")
        check(
            (kinds[0], kinds[1])
            in (("BlockWise1x128", "BlockWise128x128"), ("BlockWise1x128", "BlockWise1x128")),
            f"not {kinds}",
        )
        return
    check(kinds[0] == kinds[1], f"one recipe, not {kinds}")
    check(number >= FROM[kinds[0]], f"{kinds[0]} from sm_{FROM[kinds[0]]} on")


def _check_elements(kind: str, a: torch.dtype, b: torch.dtype) -> None:
    """What torch and CUTLASS take besides cuBLAS's rules."""
    e5m2 = torch.float8_e5m2
    if "128" in kind or kind == "BlockWise1x32":
        check(e5m2 not in (a, b), f"no e5m2 with {kind}")
    if kind == "RowWise":
        check(b is not e5m2, "e5m2 as the first operand only with RowWise")


def _decode(
    m: Tensor, scales: list[Tensor], recipe: list[int], swizzles: list[int], *, is_second: bool
) -> np.ndarray:
    """The values of (rows, K) in float64, after the checks of its scales."""
    kind, rows, length = ScalingType(recipe[0]).name, m.shape[0], m.shape[1]
    is_fp4 = kind == "BlockWise1x16"
    check(m.dtype is FLOAT4 if is_fp4 else m.dtype in FLOAT8, f"elements of {kind}")
    if is_fp4:
        length *= 2
        codes = _host(m).view(torch.uint8).numpy()
        both = np.stack([codes & 15, codes >> 4], -1).reshape(rows, length)
        table = np.array(E2M1 + [-x for x in E2M1])
        values = table[both]
    else:
        values = _host(m).double().numpy()
    s = scales[0]
    swizzle = swizzles[0] if swizzles else PLAIN
    if kind in ("TensorWise", "RowWise") or "128" in kind:
        check(s.dtype is torch.float32 and swizzle == PLAIN, f"plain float32 scales of {kind}")
        if kind == "TensorWise":
            check(s.numel() == 1, "one scale")
            return values * float(_host(s).reshape(()))
        if kind == "RowWise":
            check(s.shape == ((1, rows) if is_second else (rows, 1)), "a scale per row")
            check(s.stride(1 if is_second else 0) == 1, "contiguous scales")
            return values * _host(s).double().reshape(rows, 1).numpy()
        blocks = -(-length // 128)
        if kind == "BlockWise1x128":
            check(s.shape == (rows, blocks), "a scale per 1 x 128")
            is_single = blocks == 1 and s.stride(1) == 1
            check(s.stride(0) == 1 and (s.stride(1) == rows or is_single), "columns of scales")
            each = _host(s).double().numpy()
        else:
            padded, tiles = -(-blocks // 4) * 4, -(-rows // 128)
            check(s.shape == (padded, tiles), "a scale per 128 x 128, K padded to 4")
            is_single = tiles == 1 and s.stride(1) == 1
            check(s.stride(0) == 1 and (s.stride(1) == padded or is_single), "columns of scales")
            each = np.repeat(_host(s).double().numpy().T[:, :blocks], 128, 0)[:rows]
        return values * np.repeat(each, 128, 1)[:, :length]
    size = 16 if is_fp4 else 32
    check(len(scales) == len(recipe) == len(swizzles) == 1 + is_fp4, "a swizzle for each scale")
    check(s.dtype is (torch.float8_e4m3fn if is_fp4 else torch.float8_e8m0fnu), "dtype of scales")
    check(swizzle == SWIZZLED and s.is_contiguous(), "swizzled, contiguous scales")
    columns = -(-length // size)
    across = -(-columns // 4)
    check(s.numel() == -(-rows // 128) * 128 * across * 4, "scales padded to 128 x 4")
    numbers = _host(s).float().double().reshape(-1).numpy()
    r, c = np.indices((rows, columns))
    at = (r // 128 * across + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    values = values * np.repeat(numbers[at], size, 1)[:, :length]
    if is_fp4:
        check(ScalingType(recipe[1]).name == "TensorWise", "a scale of the tensor")
        check(scales[1].dtype is torch.float32 and scales[1].numel() == 1, "one float32 number")
        values = values * float(_host(scales[1]).reshape(()))
    return values


def _host(x: Tensor) -> Tensor:
    """The same memory as a tensor of the host: the emulated device has no other."""
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    count = (last + 1) * x.element_size() if x.numel() else 0
    memory = (ctypes.c_uint8 * count).from_address(x.data_ptr())
    flat = torch.frombuffer(memory, dtype=torch.uint8).view(x.dtype)
    return flat.as_strided(x.shape, x.stride())
