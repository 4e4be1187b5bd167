"""Where the time of a quantized product goes: the multiplication, and the passes around it.

    python benchmarks/kernels.py [--repeats 10] [--threads 2] [--bits 7] [--quick]

First table: one shape per line, each product by float32, bf16 and int8 alone (`integer_gemm`,
`integer_conv`), then by the whole kernel with sums, scales and offsets. Gop/s counts a
multiplication and an addition; "of int8 peak" is relative to the fastest bare integer product.
Second table: the passes over one tensor, in nanoseconds per element and as a share of that shape's
float32 product. Everything is interleaved; `bits` must be what integers multiply exactly here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from bitcycle.kernels.integer import integer_conv, integer_gemm
from bitcycle.kernels.operand import Operand
from torch import Tensor

from bitcycle.bench import find_processor, time_interleaved
from bitcycle.kernels import ConvGeometry, Geometry, LinearGeometry, exact_bits, make_kernel
from bitcycle.ops.affine import value_range
from bitcycle.ops.codes import decode, nearest_codes, shift_codes, stochastic_codes
from bitcycle.ops.noise import noise_key
from bitcycle.quantizers.base import Quantized
from bitcycle.quantizers.sbm import SBM
from bitcycle.tables import text_table

Pass = Callable[[], object]
BUDGET = 10.0  # seconds: bfloat16 without instructions for it takes minutes


@dataclass(frozen=True)
class Shape:
    """A product: its geometry, its input and its weight."""

    name: str
    geometry: Geometry
    a: tuple[int, ...]
    w: tuple[int, ...]

    def count_ops(self) -> int:
        """Two per multiplication of the output product; the other two products have as many."""
        meta = (torch.empty(shape, device="meta") for shape in (self.a, self.w))
        return 2 * prod(self.geometry.output(*meta, None).shape) * prod(self.w[1:])


def linear(tokens: int, inputs: int, outputs: int) -> Shape:
    """A Linear layer on so many tokens."""
    name = f"linear {tokens} x {inputs} -> {outputs}"
    return Shape(name, LinearGeometry(), (tokens, inputs), (outputs, inputs))


def conv(batch: int, channels: int, side: int, kernel: int, outputs: int) -> Shape:
    """A convolution with stride 1 that keeps the size."""
    geometry = ConvGeometry((1, 1), (kernel // 2,) * 2, (1, 1), 1)
    name = f"conv{kernel}x{kernel} {batch} x {channels} x {side}x{side} -> {outputs}"
    return Shape(name, geometry, (batch, channels, side, side), (outputs, channels, kernel, kernel))


SHAPES = (
    linear(2048, 512, 2048), linear(2048, 1024, 4096), linear(700, 650, 2600),
    conv(64, 16, 32, 3, 16), conv(64, 64, 32, 3, 64), conv(64, 256, 8, 3, 256),
    conv(8, 64, 56, 3, 64), conv(8, 256, 56, 1, 64),
)  # fmt: skip
QUICK = (linear(64, 32, 64), conv(2, 8, 8, 3, 8))


@dataclass(frozen=True)
class Operands:
    """Random values of a shape's three operands, and their codes."""

    a: Tensor
    w: Tensor
    e: Tensor
    qa: Quantized
    qw: Quantized
    qw_in: Quantized  # on the grid of grad_input, which an integer kernel needs
    qe: Quantized


def make_operands(shape: Shape, bits: int) -> Operands:
    """Channels-last for convolutions."""
    sbm, levels = SBM(), torch.tensor(2**bits - 1)
    a, w = torch.randn(shape.a), torch.randn(shape.w) * 0.05
    e = torch.randn_like(shape.geometry.output(a, w, None))
    if a.dim() == 4:
        a, w, e = (x.contiguous(memory_format=torch.channels_last) for x in (a, w, e))

    def encode(role: str, x: Tensor, keep: tuple[int, ...], carrier: torch.dtype) -> Quantized:
        within = sbm.range_of(role, x, keep)
        quantized = sbm.encode(role, x, levels, within, carrier=carrier)
        return Quantized(
            quantized.scale, quantized.offset, codes=quantized.codes, half=quantized.half, top=bits
        )

    return Operands(
        a=a, w=w, e=e,
        qa=encode("act", a, (), torch.uint8),
        qw=encode("weight", w, (0,), torch.int8),
        qw_in=encode("weight", w, (1,), torch.int8),
        qe=encode("error", e, (), torch.uint8),
    )  # fmt: skip


def products(shape: Shape, x: Operands) -> dict[str, Pass]:
    """The bare output product by each arithmetic, then all three by each kernel."""
    geometry, scale = shape.geometry, torch.ones(shape.w[0])
    half_a, half_w = x.a.to(torch.bfloat16), x.w.to(torch.bfloat16)
    assert x.qa.codes is not None
    assert x.qw.codes is not None
    codes_a, codes_w = x.qa.codes, x.qw.codes

    def integer() -> Tensor:
        if isinstance(geometry, ConvGeometry):
            return integer_conv(codes_a, codes_w, geometry, scale)
        return integer_gemm(codes_a, codes_w, scale, None)

    found: dict[str, Pass] = {
        "float32": lambda: geometry.output(x.a, x.w, None),
        "bf16": lambda: geometry.output(half_a, half_w, None),
        "int8": integer,
    }
    for name in ("simulate", "dequantize", "int8"):
        kernel = make_kernel(name)
        qa, qw, qw_in, qe = (
            (x.qa, x.qw, x.qw_in, x.qe)
            if kernel.takes_codes
            else (Quantized(values=x.a), Quantized(values=x.w), Quantized(values=x.w),
                  Quantized(values=x.e))
        )  # fmt: skip
        found |= {
            f"{name} output": lambda k=kernel, a=qa, w=qw: k.output(geometry, a, w, None),
            f"{name} grad_input": lambda k=kernel, e=qe, w=qw_in: k.grad_input(
                geometry, e, w, x.a.shape
            ),
            f"{name} grad_weight": lambda k=kernel, e=qe, a=qa: k.grad_weight(
                geometry, e, a, x.w.shape
            ),
        }
    return found


def passes(x: Operands, bits: int) -> dict[str, tuple[int, Pass]]:
    """Number of elements and the pass, for what surrounds a product."""
    levels = torch.tensor(2.0**bits - 1)
    low, high = value_range(x.a)
    grid = ((high - low) / levels, low, levels)
    w_low, w_high = value_range(x.w, (0,))
    w_grid = ((w_high - w_low) / levels, w_low, levels)
    key = noise_key(torch.zeros(3, dtype=torch.int32))
    q = x.qa
    assert q.codes is not None
    assert q.scale is not None
    assert q.offset is not None
    assert q.half is not None
    codes, scale, offset, half = q.codes, q.scale, q.offset, q.half
    operand = Operand(codes, scale, offset, bits)
    row = torch.ones(1, *x.e.shape[1:2], *[1] * (x.e.dim() - 2))
    sums = operand.sum([1], keepdim=True)
    result = torch.zeros_like(x.e)
    a, w, e = x.a.numel(), x.w.numel(), x.e.numel()
    found: dict[str, tuple[int, Pass]] = {
        "range of act": (a, lambda: value_range(x.a)),
        "encode act (nearest)": (a, lambda: nearest_codes(x.a, *grid, torch.uint8)),
        "range of error": (e, lambda: value_range(x.e)),
        "encode error (stochastic)": (e, lambda: stochastic_codes(x.e, *grid, key)),
        "range of weight": (w, lambda: value_range(x.w, (0,))),
        "encode weight (nearest)": (w, lambda: nearest_codes(x.w, *w_grid, torch.int8)),
        "decode act": (a, lambda: decode(codes, scale, offset)),
        "uint8 -> int8": (a, lambda: shift_codes(codes, half)),
        "sum codes over channels": (a, lambda: operand.sum([1], keepdim=True)),
    }
    if x.a.dim() == 2 or sums.shape[2:] == x.e.shape[2:]:
        found["add a term to the output"] = (e, lambda: result.addcmul_(sums, row))
    return found


@dataclass(frozen=True)
class Line:
    """One time, and the float32 product of the same shape to hold it against."""

    shape: Shape
    name: str
    seconds: float
    base: float
    count: int  # operations of a product, elements of a pass

    @property
    def speed(self) -> float:
        """Gop/s of a product."""
        return self.count / self.seconds / 1e9


def measure(shape: Shape, bits: int, repeats: int) -> tuple[list[Line], list[Line]]:
    """The products, and the passes around them."""
    x = make_operands(shape, bits)
    calls, around = products(shape, x), passes(x, bits)
    with torch.no_grad():
        timings = time_interleaved(
            calls | {name: call for name, (_, call) in around.items()},
            repeats=repeats,
            budget=BUDGET,
        )
    base, ops = timings["float32"].fastest, shape.count_ops()
    first = [Line(shape, name, timings[name].fastest, base, ops) for name in calls]
    second = [
        Line(shape, name, timings[name].fastest, base, count) for name, (count, _) in around.items()
    ]
    return first, second


def main() -> None:
    """Measure all shapes and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--bits", type=int, default=8 if exact_bits("cpu") >= 16 else 7)
    parser.add_argument("--quick", action="store_true", help="small shapes: a check")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{find_processor()}\n{options.bits}-bit codes\n", flush=True)
    first: list[Line] = []
    second: list[Line] = []
    for shape in QUICK if options.quick else SHAPES:
        product_lines, pass_lines = measure(shape, options.bits, options.repeats)
        first += product_lines
        second += pass_lines
    peak = max(line.speed for line in first if line.name == "int8")
    body = [
        [line.shape.name, line.name, f"{1e3 * line.seconds:.3f}", f"{line.speed:.1f}",
         f"{line.speed / peak:.2f}", f"{line.seconds / line.base:.2f}"]
        for line in first
    ]  # fmt: skip
    header = ("shape", "product", "ms", "Gop/s", "of int8 peak", "of float32")
    print(text_table(header, blank_repeats(body), right=(2, 3, 4, 5)))
    body = [
        [line.shape.name, line.name, f"{1e3 * line.seconds:.3f}",
         f"{1e9 * line.seconds / line.count:.2f}", f"{line.seconds / line.base:.2f}"]
        for line in second
    ]  # fmt: skip
    header = ("shape", "pass", "ms", "ns/element", "of float32 product")
    print(f"\n{text_table(header, blank_repeats(body), right=(2, 3, 4))}")


def blank_repeats(rows: list[list[str]]) -> list[list[str]]:
    """The first cell only where it changes."""
    names = ["", *(row[0] for row in rows)]
    return [
        ["" if row[0] == former else row[0], *row[1:]]
        for row, former in zip(rows, names, strict=False)
    ]


if __name__ == "__main__":
    main()
