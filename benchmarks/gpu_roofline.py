"""Bound the time of a layer's training step on GPUs from their data sheets; nothing is measured.

    python benchmarks/gpu_roofline.py            # milliseconds, and where the kernel `gpu` gains
    python benchmarks/gpu_roofline.py --table    # the rows of kernels/choice.csv

A step is a forward and a backward pass: a list of launches, one after the other. Each takes the
longest of its bytes at the full bandwidth, its operations at the peak rate, and `LAUNCH` seconds.
Operands are read once from memory and results written once. A multiply-accumulate counts as two
operations. Reality is slower, libraries less so than the kernels here; so the table lets a product
of `gpu` reach `SHARE` of the peak, and takes `gpu` where the step gains `GAIN` even so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from math import exp, fsum, log
from typing import Any, NamedTuple

from bitcycle.kernels.choice import ROOFLINE, TableRow, table_text
from bitcycle.kernels.scaled import kinds_on

LAUNCH = 5e-6  # seconds; an assumption
SHARE, GAIN = 0.5, 1.2


class Gpu(NamedTuple):
    """Peak rates in 10^12 operations per second, dense, and bandwidth in 10^12 bytes per second.

    fp32: without TF32, as `simulate` multiplies. 0: the GPU has no such products.
    """

    name: str
    int8: float
    bf16: float
    fp8: float
    fp32: float
    bandwidth: float
    fp4: float = 0


GPUS = {
    # NVIDIA's data sheets; where these give rates with sparsity, half of them
    "sm_80": Gpu("A100 SXM 80 GB", 624, 312, 0, 19.5, 2.04),
    "sm_89": Gpu("L40S", 733, 362, 733, 91.6, 0.864),
    "sm_90": Gpu("H100 SXM", 1979, 989, 1979, 67, 3.35),
    "sm_100": Gpu("B200", 4500, 2250, 4500, 75, 8.0, 9000),
    "sm_103": Gpu("B300", 150, 2250, 4500, 75, 8.0, 13500),  # made with few integer units
    # AMD's data sheet
    "gfx942": Gpu("MI300X", 2615, 1307, 2615, 163.4, 5.3),
}


class Layer(NamedTuple):
    """Elements of both operands and of the result, and multiply-accumulates of one product."""

    kind: str
    first: int
    second: int
    result: int
    macs: int
    rows: int  # that each weight meets


class Launch(NamedTuple):
    """One kernel; unit: the field of `Gpu` that multiplies, "" if nothing does."""

    bytes: int
    macs: int = 0
    unit: str = ""


def linear(tokens: int, inputs: int, outputs: int, kind: str = "linear") -> Layer:
    macs = tokens * inputs * outputs
    return Layer(kind, tokens * inputs, inputs * outputs, tokens * outputs, macs, tokens)


def matmul(heads: int, tokens: int, width: int) -> Layer:
    """Scores of attention: (heads, tokens, width) x (heads, width, tokens)."""
    size, result = heads * tokens * width, heads * tokens * tokens
    return Layer("matmul", size, size, result, result * width, tokens)


def convolution(batch: int, channels: int, side: int) -> Layer:
    """3 x 3, stride 1, as many channels as before."""
    pixels = batch * side * side
    size, weight = pixels * channels, 9 * channels**2
    return Layer("convolution", size, weight, size, pixels * weight, pixels)


def pointwise(batch: int, channels: int, side: int) -> Layer:
    """1 x 1, as many channels as before."""
    pixels = batch * side * side
    return linear(pixels, channels, channels, "pointwise")


# -- steps ----------------------------------------------------------------------------------------


def products(layer: Layer, size: int, unit: str, *, result: int = 4) -> list[Launch]:
    """output, grad_input, grad_weight; size, result: bytes of an element."""
    a, w, e, macs = layer.first, layer.second, layer.result, layer.macs
    operands, results = (a + w, e + w, e + a), (e, a, w)
    return [
        Launch(size * read + result * written, macs, unit)
        for read, written in zip(operands, results, strict=True)
    ]


def bias_gradient(layer: Layer, size: int = 4) -> list[Launch]:
    return [Launch(size * layer.result)] if layer.kind in ("linear", "node") else []


def float32(layer: Layer) -> list[Launch]:
    return products(layer, 4, "fp32") + bias_gradient(layer)


def autocast(layer: Layer) -> list[Launch]:
    """bfloat16: the operands and their gradients are converted; so are those of a bias."""
    casts = [Launch(6 * size) for size in (layer.first, layer.second) * 2]
    small = [Launch(0)] * 2 * len(bias_gradient(layer))
    return products(layer, 2, "bf16", result=2) + casts + small + bias_gradient(layer, 2)


def rounding(layer: Layer, size: int) -> list[Launch]:
    """Range, then values or codes of three tensors; the clock, running ranges and checks."""
    tensors, num_small = layer[1:4], 4
    ranges = [Launch(4 * each) for each in tensors]
    return [*ranges, *(Launch((4 + size) * each) for each in tensors), *[Launch(0)] * num_small]


def simulate(layer: Layer) -> list[Launch]:
    return rounding(layer, 4) + float32(layer)


def gpu(layer: Layer) -> list[Launch]:
    """Codes; each product lays out or folds its operands, then multiplies integers."""
    if layer.kind == "convolution":
        return by_convolutions(layer)
    a, w, e, macs = layer.first, layer.second, layer.result, layer.macs
    is_folded = (layer.kind != "matmul", layer.kind == "node")  # grad_input: w, grad_weight: a
    made = rounding(layer, 1) + bias_gradient(layer)
    for first, second, result, folds in (
        (a, w, e, False), (e, w, a, is_folded[0]), (e, a, w, is_folded[1]),
    ):  # fmt: skip
        planes = 2 if folds else 1
        laid_out = planes * second + (0 if folds else first)  # a fold reads its codes twice
        codes = first if folds else 0  # which the product reads where they are
        made += [Launch(2 * laid_out), Launch(codes + laid_out + 4 * result, planes * macs, "int8")]
    return made


def by_convolutions(layer: Layer) -> list[Launch]:
    """bfloat16 convolutions of centred codes, what corrects their zeros, and a sum of the terms.

    Centring, the product, the sum, and four small ones: maps of ones, and convolutions of them with
    one channel. The weight of grad_input is folded, the error given twice.
    """
    a, w, e, macs = layer.first, layer.second, layer.result, layer.macs
    made = rounding(layer, 1)
    for x, y, result in ((a, w, e), (e, a, w)):
        made += [Launch(3 * x), Launch(3 * y), Launch(2 * (x + y + result), macs, "bf16")]
        made += [Launch(6 * result), *[Launch(0)] * 4]
    product = Launch(2 * (2 * e + 2 * w + a), 2 * macs, "bf16")
    return [*made, Launch(5 * e), Launch(6 * w), product, Launch(6 * a), *[Launch(0)] * 4]


class Format(NamedTuple):
    """What a kind of format costs: bytes of an element with its scales, and its tensor cores."""

    bytes: float
    unit: str
    has_tensor_scale: bool  # whose largest magnitude is another launch
    num_small: int  # the clock; nvfp4: that of the noise of grad_weight


FORMATS = {
    "fp8": Format(1, "fp8", True, 1),
    "mx": Format(1 + 1 / 32, "fp8", False, 1),
    "nvfp4": Format(0.5 + 1 / 16, "fp4", True, 3),
}


def rounding_of(layer: Layer, kind: str, size: float) -> list[Launch]:
    """Each of three tensors twice: once for each product that reads it. size: bytes of a result."""
    form, tensors = FORMATS[kind], layer[1:4] * 2
    ranges = [Launch(4 * each) for each in tensors] if form.has_tensor_scale else []
    return [*ranges, *(Launch(int((4 + size) * n)) for n in tensors), *[Launch(0)] * form.num_small]


def simulate_format(layer: Layer, kind: str) -> list[Launch]:
    return rounding_of(layer, kind, 4) + float32(layer)


def scaled(layer: Layer, kind: str) -> list[Launch]:
    """Matrices for tensor cores, their products, and a bias in a launch of its own."""
    form = FORMATS[kind]
    made = rounding_of(layer, kind, form.bytes) + bias_gradient(layer)
    operands = (layer.first, layer.second), (layer.result, layer.second), layer[1:4:2]
    for (first, second), result in zip(operands, (layer.result, *layer[1:3]), strict=True):
        size = int(form.bytes * (first + second)) + 4 * result
        made.append(Launch(size, layer.macs, form.unit))
    return [*made, Launch(8 * layer.result)]


STEPS: dict[str, Callable[[Layer], list[Launch]]] = {
    "float32": float32, "bf16": autocast, "simulate": simulate, "gpu": gpu,
}  # fmt: skip
OF_FORMATS: dict[str, Callable[[Layer], list[Launch]]] = {
    kind: partial(scaled, kind=kind) for kind in FORMATS
}


def seconds(launches: list[Launch], on: Gpu, share: float = 1.0) -> float:
    """share: of the peak that products reach."""
    total = 0.0
    for each in launches:
        rate = 1e12 * share * getattr(on, each.unit) if each.unit else 1.0
        total += max(LAUNCH, each.bytes / (1e12 * on.bandwidth), 2 * each.macs / rate)
    return total


# -- the table ------------------------------------------------------------------------------------

LADDERS: dict[str, list[Layer]] = {  # doubling, the smallest first
    "linear": [linear(4 << (n + 2) // 3, 1 << (n + 1) // 3, 1 << n // 3) for n in range(10, 39)],
    "matmul": [matmul(1 << n // 3, 1 << (n + 2) // 3 + 2, 64) for n in range(6, 26)],
    "convolution": [convolution(1 << n // 2, 1 << (n + 1) // 4 + 3, 16) for n in range(2, 24)],
    "pointwise": [pointwise(1 << n // 2, 1 << (n + 1) // 4 + 3, 16) for n in range(2, 26)],
}  # fmt: skip
LADDERS["node"] = [each._replace(kind="node") for each in LADDERS["linear"]]
ROWS = {
    "linear": [linear(1 << n, 4096, 4096) for n in range(16)],
    "node": [linear(1 << n, 4096, 4096, "node") for n in range(16)],
    "pointwise": [linear(1 << n, 4096, 4096, "pointwise") for n in range(16)],
}


def ratio(layer: Layer, on: Gpu, top: int | str = 8) -> float:
    """The time of `gpu` with the table's share of the peak, of `simulate`'s.

    top: bits of codes, or a kind of format.
    """
    ours, theirs = gpu(layer), simulate(layer)
    if isinstance(top, str):
        ours, theirs = scaled(layer, top), simulate_format(layer, top)
    return seconds(ours, on, SHARE) / seconds(theirs, on)


def first_gain(ladder: list[Layer], on: Gpu, top: int | str = 8) -> int | None:
    """Where in a ladder `gpu` gains, and gains from there on."""
    gains = [ratio(layer, on, top) * GAIN <= 1 for layer in ladder]
    last = max((i for i, gain in enumerate(gains) if not gain), default=-1)
    return last + 1 if last + 1 < len(gains) else None


def table() -> list[TableRow]:
    """The rows of all GPUs: `simulate` first, then `gpu` where it gains."""
    return [
        row
        for name in GPUS
        for layer, ladder in LADDERS.items()
        for top in (8, *FORMATS)
        if top == 8 or (layer == "linear" and top in kinds_on(name))
        for row in _rows(name, layer, ladder, top)
    ]


def _rows(name: str, layer: str, ladder: list[Layer], top: int | str) -> list[TableRow]:
    on = GPUS[name]
    made: dict[str, Any] = {"processor": name, "layer": layer, "top": top, "source": ROOFLINE}
    rows = [TableRow(macs_from=0, rows_from=0, kernel="simulate", ratio=1.0, **made)]
    place = first_gain(ladder, on, top)
    if place is None:
        return rows
    few = first_gain(ROWS[layer], on, top) if layer in ROWS else 0
    assert few is not None
    gained = [ratio(each, on, top) for each in ladder[place:]]
    mean = exp(fsum(map(log, gained)) / len(gained))
    size = ladder[place].macs
    rows_from = ROWS[layer][few].rows if layer in ROWS else 0
    gain = {"macs_from": size, "rows_from": rows_from, "kernel": "gpu", "ratio": round(mean, 2)}
    return [*rows, TableRow(**gain, **made)]


# -- printing -------------------------------------------------------------------------------------

SHOWN = {
    "linear 512 x 512 x 512": linear(512, 512, 512),
    "linear 8192 x 1024 x 1024": linear(8192, 1024, 1024),
    "linear 8192 x 4096 x 4096": linear(8192, 4096, 4096),
    "attention 64 heads, 1024 tokens": matmul(64, 1024, 64),
    "convolution 64 x 128 x 28 x 28": convolution(64, 128, 28),
    "pointwise 64 x 512 x 28 x 28": pointwise(64, 512, 28),
}


def main() -> None:
    """Print the table of times and the sizes, or the rows of choice.csv."""
    if sys.argv[1:] == ["--table"]:
        print(table_text(table()), end="")
        return
    print(__doc__.split("\n\n", 2)[2])
    print(f"LAUNCH {1e6 * LAUNCH:.0f} microseconds, SHARE {SHARE}, GAIN {GAIN}\n")
    for name, on in GPUS.items():
        print(f"{name}: {on}")
    names = "".join(f"{name:>10}" for name in (*STEPS, *OF_FORMATS))
    print(f"\n{'ms, forward + backward':32}  class   {names[1:]}")
    for title, layer in SHOWN.items():
        columns = STEPS | (OF_FORMATS if layer.kind == "linear" else {})
        for name, on in GPUS.items():
            times = "".join(
                f"{1e3 * seconds(columns[step](layer), on):10.3f}"
                if step not in FORMATS or step in kinds_on(name)
                else 10 * " "
                for step in columns
            )
            print(f"{title:32}  {name:7}{times}")
        counts = "".join(f"{len(step(layer)):10}" for step in columns.values())
        print(f"{title:32}  launches{counts[1:]}")
    print("\n`gpu` instead of `simulate` from:")
    for row in table():
        if row.kernel == "gpu":
            size = f"{row.macs_from:,} multiply-accumulates, {row.rows_from} rows"
            what = row.layer if row.top == 8 else f"{row.layer} {row.top}"
            print(f"{row.processor:8}{what:14}{size:48}ratio {row.ratio:.2f} (geometric mean)")


if __name__ == "__main__":
    main()
