"""The three products of one layer by the native library, against float32, at several bits.

    python benchmarks/kernels.py [--repeats 10] [--threads 2] [--bits 2 4 6 7 8] [--quick]

One shape per group of lines. The weight has a scale per output channel, as `sbm` gives it, so that
grad_input is folded. Codes exist already: encoding is what `where_time_goes.py` shows. Gop/s counts
a multiplication and an addition. All calls of a shape are interleaved; the fastest counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bitcycle.kernels import ConvGeometry, Geometry, LinearGeometry, MatMulGeometry, make_kernel
from bitcycle.kernels.base import MATMULS
from bitcycle.native.allocator import keep_freed_memory
from bitcycle.quantizers.base import Quantized
from bitcycle.tables import text_table
from bitcycle_lab.bench import find_processor, time_interleaved

ERROR_BITS = 8


@dataclass(frozen=True)
class Shape:
    """A product: its geometry, its input, its weight and its output."""

    name: str
    geometry: Geometry
    a: tuple[int, ...]
    w: tuple[int, ...]
    e: tuple[int, ...]

    @property
    def ops(self) -> int:
        """Two per multiply-accumulate of the output; the other two products have as many."""
        return 2 * self.geometry.macs(torch.Size(self.a), torch.Size(self.w))


def linear(tokens: int, inputs: int, outputs: int) -> Shape:
    """A linear layer on so many tokens."""
    name = f"linear {tokens} x {inputs} -> {outputs}"
    return Shape(name, LinearGeometry(), (tokens, inputs), (outputs, inputs), (tokens, outputs))


def heads(num: int, tokens: int, width: int) -> Shape:
    """Queries x keys of attention heads."""
    a, w, e = (num, tokens, width), (num, width, tokens), (num, tokens, tokens)
    return Shape(f"heads {num} x {tokens} x {width}", MatMulGeometry(), a, w, e)


def conv(batch: int, channels: int, side: int, kernel: int, outputs: int, groups: int = 1) -> Shape:
    """A convolution with stride 1 that keeps the size."""
    geometry = ConvGeometry((1, 1), (kernel // 2,) * 2, (1, 1), groups)
    kind = "depthwise" if groups > 1 else "conv"
    name = f"{kind}{kernel}x{kernel} {batch} x {channels} x {side}x{side} -> {outputs}"
    return Shape(
        name, geometry, (batch, channels, side, side),
        (outputs, channels // groups, kernel, kernel), (batch, outputs, side, side),
    )  # fmt: skip


SHAPES = (
    linear(2048, 512, 2048), linear(2048, 1024, 4096), linear(700, 650, 2600), heads(64, 256, 64),
    conv(64, 16, 32, 3, 16), conv(64, 64, 32, 3, 64), conv(64, 256, 8, 3, 256),
    conv(8, 64, 56, 3, 64), conv(8, 256, 56, 1, 64), conv(8, 64, 56, 3, 64, groups=64),
)  # fmt: skip
QUICK = (linear(64, 32, 64), heads(2, 16, 16), conv(2, 8, 8, 3, 8), conv(2, 8, 8, 3, 8, groups=8))


def random_codes(shape: tuple[int, ...], bits: int, *, channels: bool = False) -> Quantized:
    """Codes with one scale, or with one for each element of the first dimension."""
    codes = torch.randint(2**bits, shape, dtype=torch.uint8)
    if codes.dim() == 4:
        codes = codes.contiguous(memory_format=torch.channels_last)
    size = (shape[0], *[1] * (len(shape) - 1)) if channels else ()
    scale = torch.rand(size) + 0.5
    half = torch.tensor(2.0 ** (bits - 1))
    return Quantized(scale, -half * scale, codes=codes, half=half, top=bits)


def calls(shape: Shape, all_bits: list[int]) -> dict[tuple[str, str], Callable[[], object]]:
    """The product and the bits -> a call; float32 multiplies the values of the last bits."""
    found: dict[tuple[str, str], Callable[[], object]] = {}
    has_weight = not isinstance(shape.geometry, MatMulGeometry)
    for bits in all_bits:
        a, e = random_codes(shape.a, bits), random_codes(shape.e, ERROR_BITS)
        w = random_codes(shape.w, bits, channels=has_weight)
        found |= _products(f"{bits}", "native", shape, a, w, e)
    a, w, e = (Quantized(values=each.dequantize()) for each in (a, w, e))
    return _products("float32", "simulate", shape, a, w, e) | found


def _products(
    label: str, name: str, shape: Shape, a: Quantized, w: Quantized, e: Quantized
) -> dict[tuple[str, str], Callable[[], object]]:
    products = make_kernel(name).products(shape.geometry)
    a_shape, w_shape = torch.Size(shape.a), torch.Size(shape.w)
    functions = (
        lambda: products.output(a, w, None),
        lambda: products.grad_input(e, w, a_shape),
        lambda: products.grad_weight(e, a, w_shape),
    )
    return {(matmul, label): call for matmul, call in zip(MATMULS, functions, strict=True)}


def measure(shape: Shape, bits: list[int], repeats: int) -> list[list[str]]:
    """A line per product: float32, then the ratio at each of the bits."""
    functions = calls(shape, bits)
    by_text = {" ".join(key): call for key, call in functions.items()}
    with torch.no_grad():
        timings = time_interleaved(by_text, repeats=repeats, budget=10.0)
    rows = []
    for matmul in MATMULS:
        base = timings[f"{matmul} float32"].fastest
        fastest = [timings[f"{matmul} {each}"].fastest for each in bits]
        rows.append(
            [shape.name if matmul == MATMULS[0] else "", matmul, f"{1e3 * base:.2f}",
             f"{shape.ops / base / 1e9:.0f}", f"{shape.ops / fastest[-1] / 1e9:.0f}",
             *(f"{each / base:.2f}" for each in fastest)]
        )  # fmt: skip
    return rows


def main() -> None:
    """Measure all shapes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--bits", type=int, nargs="+", default=[2, 4, 6, 7, 8])
    parser.add_argument("--quick", action="store_true", help="small shapes: a check")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    keep_freed_memory()
    print(f"{find_processor()}\nnative's time, of float32's; errors have {ERROR_BITS} bits\n")
    body: list[list[str]] = []
    for shape in QUICK if options.quick else SHAPES:
        body += measure(shape, options.bits, 1 if options.quick else options.repeats)
    last = options.bits[-1]
    header = ("shape", "product", "float32 ms", "Gop/s", f"Gop/s at {last}",
              *(f"{bits} bits" for bits in options.bits))  # fmt: skip
    print(text_table(header, body, right=tuple(range(2, len(header)))))


if __name__ == "__main__":
    main()
