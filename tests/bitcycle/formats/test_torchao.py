"""MX and NVFP4 value by value against torchao 0.18: recorded, and live where it is installed.

`python -m tests.bitcycle.formats.test_torchao` writes the recorded values anew, in an environment
with torchao.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bitcycle.formats import list_formats, round_to

FILE = Path(__file__).with_name("torchao.csv")
MX = [each.name for each in list_formats() if each.kind == "mx" and each.name != "mxint8"]
COLUMNS = [
    *((name, {"scale": scale}) for name in MX for scale in ("floor", "rceil")),
    ("nvfp4", {"tensor_scale": True}),
    ("nvfp4", {"tensor_scale": False}),
]


def title(name: str, options: dict[str, object]) -> str:
    return f"{name} {'='.join(str(word) for pair in options.items() for word in pair)}"


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def of_torchao(x: Tensor, name: str, options: dict[str, object]) -> Tensor:
    """What torchao makes of float32 rows whose length is a multiple of 32."""
    from torchao.prototype.mx_formats import constants, mx_tensor, nvfp4_tensor
    from torchao.prototype.mx_formats.config import ScaleCalculationMode

    if name == "nvfp4":
        g = nvfp4_tensor.per_tensor_amax_to_scale(x.abs().max())
        g = g if options["tensor_scale"] and x.any() else None
        return nvfp4_tensor.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=g).dequantize(torch.float32)
    element = {
        "mxfp8": torch.float8_e4m3fn,
        "mxfp8_e5m2": torch.float8_e5m2,
        "mxfp6": constants.DTYPE_FP6_E2M3,
        "mxfp6_e3m2": constants.DTYPE_FP6_E3M2,
        "mxfp4": torch.float4_e2m1fn_x2,
    }[name]
    mode = ScaleCalculationMode(options["scale"])
    scales, codes = mx_tensor.to_mx(x, element, 32, mode)
    return mx_tensor.to_dtype(codes, scales, element, 32, torch.float32)


def small_rows() -> Tensor:
    """Rows of 32 values, each a tensor: ties, powers of two, subnormals, a huge value, zeros."""
    place = torch.arange(32.0)
    sign = 1 - 2 * (place % 2)
    normal = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    huge = normal[1].clone()
    huge[7] = 3.7e6
    powers = sign * 2.0 ** (place - 20)
    clipped = 1.7 + place / 100  # around 1.75, above which e4m3 clips with the scale of the floor
    subnormal = sign * place * 2.0**-140
    subnormal[3] = 2.0**-100
    zeros = sign * 0.0
    ties = [sign * place / 4, sign * (place + 0.5) / 8, place / 64 + 1]
    return torch.stack([*normal, *ties, powers, clipped, huge, subnormal, zeros])


@functools.cache
def recorded() -> dict[str, Tensor]:
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: torch.tensor([float(row[name]) for row in rows]).view(-1, 32) for name in rows[0]}


@pytest.mark.parametrize(("name", "options"), COLUMNS, ids=lambda value: str(value))
def test_recorded_values(name: str, options: dict[str, object]) -> None:
    found = torch.cat([round_to(row[None], name, **options) for row in recorded()["x"]])
    assert same_bits(found, recorded()[title(name, options)])


def many_rows() -> list[Tensor]:
    """At least 5 x 4096 values, and every finite bf16 number."""
    generator = torch.Generator().manual_seed(1)
    bits = torch.arange(0x7F80, dtype=torch.int32)
    bf16 = torch.cat([bits, bits | 0x8000]).to(torch.int16).view(torch.bfloat16).float()
    normal = torch.randn(5, 128, 32, generator=generator)
    exponents = torch.randint(-30, 30, (128, 32), generator=generator)
    huge = normal[3].clone()
    huge[:, 5] *= 1e6
    return [
        normal[0],
        normal[1] * 2.0**exponents,
        normal[2] * 2.0 ** exponents[:, :1],
        huge,
        (normal[4] * 8).round() / 8,
        normal[4].sign() * 2.0 ** (exponents // 3),
        bf16.view(-1, 32),
        bf16[torch.randperm(len(bf16), generator=generator)].view(-1, 32),
    ]


@pytest.mark.parametrize(("name", "options"), COLUMNS, ids=lambda value: str(value))
def test_values_of_the_installed_torchao(name: str, options: dict[str, object]) -> None:
    pytest.importorskip("torchao")
    emax = next(each for each in list_formats() if each.name == name).max_exponent
    for x in many_rows():
        found, expected = round_to(x, name, **options), of_torchao(x, name, options)
        if name != "nvfp4":  # below, torchao encodes with 2^-126 and decodes with 2^-127
            is_compared = x.abs().amax(1) >= 2.0 ** (emax - 126)
            found, expected = found[is_compared], expected[is_compared]
        assert same_bits(found, expected)


def main() -> None:
    """Record the values of small_rows."""
    rows = small_rows()
    columns = {"x": rows}
    for name, options in COLUMNS:
        made = torch.cat([of_torchao(row[None], name, options) for row in rows])
        columns[title(name, options)] = made
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        flat = [column.flatten().numpy() for column in columns.values()]
        writer.writerows([str(value) for value in row] for row in zip(*flat, strict=True))


if __name__ == "__main__":
    main()
