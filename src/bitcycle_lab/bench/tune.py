"""Measure the table from which kernel="auto" chooses, on this machine's processor or GPU.

For every kind of layer, a ladder of sizes and the bits that tables distinguish, forward and
backward of one converted layer are timed with each kernel, in turn. Along the sizes the kernels are
chosen that take the least time, where

- a kernel that keeps codes for backward, a quarter of the memory, may be slower than `simulate` by
  `TOLERANCE`;
- another kernel than at the size before must gain `SWITCH` over all sizes together, so that noise
  makes no rows.

Sizes with the same kernel become one row, with the geometric mean of their ratios. A second ladder,
of one weight and more and more rows, gives the rows from which a kernel of codes pays.

On a GPU both ladders are longer, and a time includes waiting for the GPU to finish. Nothing of this
has been run on one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from math import exp, fsum, log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.convert import quantize_model
from bitcycle.extras import require
from bitcycle.files import write_text
from bitcycle.kernels.choice import (
    LAYERS,
    TABLE_SWITCH,
    TOPS,
    TableRow,
    find_class,
    read_table,
    table_text,
)
from bitcycle.kernels.scaled import kinds_on
from bitcycle.matmul import MatMul
from bitcycle.model_precision import set_precision
from bitcycle_lab.bench.result import find_processor, time_interleaved

SIMULATE = "simulate"
KERNELS = {"cpu": (SIMULATE, "native"), "cuda": (SIMULATE, "gpu")}
CPU = torch.device("cpu")
TOLERANCE, SWITCH = 1.05, 1.2
BACKWARD_BITS = 8
FORMATS = {"fp8": "fp8", "mx": "mxfp8", "nvfp4": "nvfp4"}  # by kind
REPEATS, BUDGET = 30, 0.5  # of each kernel, size and bits; seconds
QUICK_SIZES = 2  # per kind of layer, one repeat, 8 bits


@dataclass(frozen=True)
class TuneCase:
    """One float layer and its inputs.

    macs: multiply-accumulates of its output product. rows: those that each weight meets.
    """

    layer: str  # kind
    macs: int
    rows: int
    build: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


# -- layers ---------------------------------------------------------------------------------------


def cases(device: torch.device = CPU) -> list[TuneCase]:
    """Every kind of layer at sizes that networks have, the smallest first."""
    made = {
        "linear": [
            _linear(*each)
            for each in ((16, 32, 32), (64, 32, 32), (64, 64, 64), (128, 128, 64), (128, 128, 256),
                         (256, 256, 256), (512, 256, 512), (1024, 512, 512), (2048, 1024, 1024))
        ],
        "node": [  # nodes, features, hidden units
            _node(*each)
            for each in ((64, 16, 16), (256, 32, 16), (2708, 16, 7), (2708, 64, 7), (2708, 64, 64),
                         (2708, 500, 16), (8192, 128, 128), (2708, 1433, 64))
        ],
        "matmul": [  # attention: heads, tokens, width of a head
            _heads(*each)
            for each in ((2, 16, 32), (4, 32, 16), (4, 64, 16), (8, 64, 32), (16, 128, 32),
                         (32, 128, 64), (64, 256, 64), (64, 512, 64))
        ],
        "convolution": [  # batch, channels, side
            _conv(*each)
            for each in ((1, 4, 8), (1, 8, 8), (2, 16, 8), (8, 16, 8), (8, 16, 16), (32, 16, 16),
                         (64, 16, 32), (8, 64, 28), (64, 64, 16), (8, 64, 56), (64, 64, 32))
        ],
        "pointwise": [
            _conv(*each, kernel=1)
            for each in ((1, 8, 8), (4, 16, 16), (8, 64, 16), (16, 128, 28), (64, 256, 14),
                         (64, 256, 28))
            if device.type == "cuda"  # on a CPU a convolution as others
        ],
        "depthwise": [
            _conv(*each, is_depthwise=True)
            for each in ((1, 16, 8), (1, 32, 16), (4, 32, 16), (8, 32, 32), (8, 64, 56),
                         (16, 96, 56))
        ],
        "recurrent": [  # units, batch, steps
            _lstm(*each)
            for each in ((16, 2, 4), (32, 2, 8), (32, 4, 16), (64, 8, 16), (128, 8, 16),
                         (256, 16, 16), (650, 20, 35))
        ],
    }  # fmt: skip
    if device.type == "cuda":
        for case in _large_cases():
            made[case.layer].append(case)
    if find_spec("torch_geometric") is None:
        made["node"] = []
    return [case for layer in LAYERS for case in sorted(made[layer], key=lambda case: case.macs)]


def _large_cases() -> list[TuneCase]:
    """Sizes that keep a GPU busy."""
    return [
        *(_linear(*each) for each in ((4096, 1024, 1024), (8192, 2048, 2048), (8192, 4096, 4096))),
        *(_node(*each) for each in ((32768, 256, 256), (131072, 512, 512))),
        *(_heads(*each) for each in ((128, 512, 64), (128, 1024, 64), (256, 2048, 64))),
        *(_conv(*each) for each in ((128, 128, 28), (256, 128, 28), (256, 256, 28))),
        *(_conv(*each, kernel=1) for each in ((64, 512, 28), (128, 1024, 14), (128, 1024, 28))),
        *(_conv(*each, is_depthwise=True) for each in ((64, 192, 56), (256, 384, 28))),
        *(_lstm(*each) for each in ((1024, 64, 32), (2048, 64, 64))),
    ]


def row_cases(device: torch.device = CPU) -> list[TuneCase]:
    """Layers whose weight waits to be used, with more and more rows."""
    if device.type == "cuda":
        return [_linear(num, 4096, 4096) for num in (8, 32, 128, 512, 2048, 8192)]
    tokens = (8, 32, 64, 128, 256, 512, 2048)
    maps = ((1, 4), (4, 4), (8, 4), (16, 4), (32, 4), (32, 8), (128, 8))  # batch, side
    linear = [_linear(num, 512, 512) for num in tokens]
    return linear + [_conv(batch, 128, side) for batch, side in maps]


def _linear(tokens: int, inputs: int, outputs: int) -> TuneCase:
    return TuneCase(
        "linear",
        tokens * inputs * outputs,
        tokens,
        lambda: (nn.Linear(inputs, outputs), (torch.randn(tokens, inputs),)),
    )


def _node(nodes: int, inputs: int, outputs: int) -> TuneCase:
    def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
        layers = require("torch_geometric.nn", extra="graph", purpose="graph layers")
        return layers.Linear(inputs, outputs), (torch.randn(nodes, inputs),)

    return TuneCase("node", nodes * inputs * outputs, nodes, build)


def _heads(heads: int, tokens: int, width: int) -> TuneCase:
    def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
        return MatMul(), (torch.randn(heads, tokens, width), torch.randn(heads, width, tokens))

    return TuneCase("matmul", heads * tokens * tokens * width, tokens, build)


def _conv(
    batch: int, channels: int, side: int, *, kernel: int = 3, is_depthwise: bool = False
) -> TuneCase:
    groups = channels if is_depthwise else 1

    def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
        conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=groups, bias=False)
        maps = torch.randn(batch, channels, side, side)
        last = torch.channels_last
        return conv.to(memory_format=last), (maps.contiguous(memory_format=last),)  # type: ignore[call-overload]

    kind = "depthwise" if is_depthwise else "pointwise" if kernel == 1 else "convolution"
    rows = batch * side * side
    return TuneCase(kind, rows * kernel**2 * channels * channels // groups, rows, build)


def _lstm(units: int, batch: int, steps: int) -> TuneCase:
    rows = batch * steps
    return TuneCase(
        "recurrent",
        2 * rows * 4 * units * units,  # of the input and of the hidden state
        rows,
        lambda: (nn.LSTM(units, units), (torch.randn(steps, batch, units),)),
    )


# -- measuring ------------------------------------------------------------------------------------


class LayerStep:
    """Forward and backward of one converted layer, with gradients of the input."""

    def __init__(
        self, case: TuneCase, kernel: str, top: int | str, device: torch.device = CPU
    ) -> None:
        torch.manual_seed(0)
        layer, inputs = case.build()
        self._device, self._inputs = device, [x.to(device) for x in inputs]
        rule = top if isinstance(top, str) else "sbm"
        self._model = quantize_model(nn.Sequential(layer), rule, kernel=kernel).to(device).train()
        name = FORMATS[rule] if isinstance(top, str) else ""
        bits = f"FW{name}/BW{name}" if name else f"w{top}a{top}e{BACKWARD_BITS}"
        set_precision(self._model, bits)
        self._error: Tensor | None = None

    def __call__(self) -> None:
        """One step; the inputs are new tensors, whose codes no cache has."""
        inputs = (x.detach().requires_grad_() for x in self._inputs)
        output: Any = self._model[0](*inputs)  # type: ignore[index]
        output = output[0] if isinstance(output, tuple) else output
        if self._error is None:
            self._error = torch.randn_like(output, device="cpu").to(self._device)
        output.backward(self._error)
        self._model.zero_grad()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def time_case(
    case: TuneCase, top: int | str, device: torch.device = CPU, *, repeats: int = REPEATS
) -> dict[str, float]:
    """The fastest seconds of each kernel of a device, in turn."""
    steps = {kernel: LayerStep(case, kernel, top, device) for kernel in KERNELS[device.type]}
    timings = time_interleaved(steps, repeats=repeats, budget=BUDGET)
    return {kernel: timing.fastest for kernel, timing in timings.items()}


def choose_kernels(ratios: Sequence[dict[str, float]]) -> list[str]:
    """The kernel for each size, from the times relative to `simulate`'s, the smallest size first.

    >>> choose_kernels([{"simulate": 1.0, "native": each} for each in (2.0, 1.04, 1.06, 0.5)])
    ['simulate', 'native', 'native', 'native']
    """
    kernels = list(ratios[0])
    best: dict[str, tuple[float, list[str]]] = {kernel: (0.0, []) for kernel in kernels}
    for at_size in ratios:  # the cheapest way to each kernel: of log(ratio) and switches
        cost = {kernel: log(at_size[kernel]) for kernel in kernels}
        cost[SIMULATE] += log(TOLERANCE)
        best = {
            kernel: min(
                (
                    total + cost[kernel] + (log(SWITCH) if path and path[-1] != kernel else 0.0),
                    [*path, kernel],
                )
                for total, path in best.values()
            )
            for kernel in kernels
        }
    return min(best.values())[1]


def find_rows_from(ratios: dict[int, dict[str, float]]) -> int:
    """The rows from which `simulate` is not the fastest, from the ratios by rows.

    >>> ratios = {8: 3.0, 32: 1.5, 128: 0.8, 512: 0.5}
    >>> find_rows_from({rows: {"simulate": 1.0, "native": r} for rows, r in ratios.items()})
    128
    """
    if not ratios:
        return 0
    rows, chosen = list(ratios), choose_kernels(list(ratios.values()))
    if SIMULATE not in chosen:
        return 0
    last = len(chosen) - 1 - chosen[::-1].index(SIMULATE)
    return rows[last + 1] if last + 1 < len(rows) else 2 * rows[-1]


def make_rows(
    processor: str,
    layer: str,
    top: int | str,
    ratios: dict[int, dict[str, float]],
    rows_from: int = 0,
) -> list[TableRow]:
    """The rows of one kind of layer and bits, from its ratios by size; the first begins at 0."""
    chosen = choose_kernels(list(ratios.values()))
    rows: list[TableRow] = []
    for kernel, group in groupby(zip(chosen, ratios, strict=True), key=lambda pair: pair[0]):
        sizes = [size for _, size in group]
        mean = exp(fsum(log(ratios[size][kernel]) for size in sizes) / len(sizes))
        rows.append(
            TableRow(
                processor=processor,
                layer=layer,
                top=top,
                macs_from=sizes[0] if rows else 0,
                rows_from=0 if kernel == SIMULATE else rows_from,
                kernel=kernel,
                ratio=round(mean, 2),
            )
        )
    return rows


def count_cases(device: torch.device = CPU, *, is_quick: bool = False) -> int:
    """The number of measurements of `measure_table`."""
    return sum(1 for _ in _plan(device, is_quick))


def _plan(device: torch.device, is_quick: bool) -> Iterator[tuple[str, TuneCase, int | str]]:
    processor, _ = find_class(_number(device))
    for ladder, of_ladder in (("macs", cases(device)), ("rows", row_cases(device))):
        for layer in LAYERS:
            own = [case for case in of_ladder if case.layer == layer]
            tops: list[int | str] = [*(TOPS[-1:] if is_quick else TOPS)]
            for top in [*tops, *(kinds_on(processor) if layer == "linear" else [])]:
                for case in own[:QUICK_SIZES] if is_quick else own:
                    yield ladder, case, top


def measure_table(
    device: torch.device = CPU,
    *,
    is_quick: bool = False,
    say: Callable[[str], None] = lambda line: None,
    advance: Callable[[int], None] = lambda done: None,
) -> list[TableRow]:
    """The rows of this device; `advance` is called with the number of measurements done."""
    processor, missing = find_class(_number(device))
    if processor is None:
        raise ValueError(f"there is nothing to choose here: {missing}")
    found: dict[tuple[str, str, int | str], dict[int, dict[str, float]]] = {}
    with torch.random.fork_rng([]), torch.enable_grad():
        for done, (ladder, case, top) in enumerate(_plan(device, is_quick), start=1):
            seconds = time_case(case, top, device, repeats=1 if is_quick else REPEATS)
            ratios = {kernel: s / seconds[SIMULATE] for kernel, s in seconds.items()}
            size = case.macs if ladder == "macs" else case.rows
            found.setdefault((ladder, case.layer, top), {})[size] = ratios
            times = ", ".join(f"{kernel} {1e3 * s:.2f}" for kernel, s in seconds.items())
            size_text = f"{case.macs:,} multiply-accumulates, {case.rows:,} rows"
            bits = top if isinstance(top, str) else f"{top} bits"
            say(f"{case.layer}, {size_text}, {bits}: {times} ms")
            advance(done)
    rows: list[TableRow] = []
    for (ladder, layer, top), by_size in found.items():
        if ladder == "macs":
            rows_from = find_rows_from(found.get(("rows", layer, top), {}))
            rows += make_rows(processor, layer, top, by_size, rows_from)
    return rows


def write_table(path: Path, rows: Sequence[TableRow], device: torch.device = CPU) -> None:
    """Write the rows; rows of other processors that the file has already are kept."""
    own = rows[0].processor
    kept = [row for row in (read_table(path) if path.exists() else ()) if row.processor != own]
    others = tuple(f"# {name}: " for name in {row.processor for row in kept})
    lines = path.read_text(encoding="utf-8").splitlines() if kept else []
    comments = [
        'What kernel="auto" takes, by processor, kind of layer, most bits of its act and weight,',
        "multiply-accumulates of its output product, and rows (tokens, pixels) that each weight",
        "meets. ratio: time of forward and backward, of simulate's. Made by `bitcycle bench --tune",
        f"FILE`; {TABLE_SWITCH}=FILE uses it, with any number of threads.",
        *(line.removeprefix("# ") for line in lines if line.startswith(others)),
        f"{own}: {_describe(device)}, torch {torch.__version__}",
    ]
    write_text(path, table_text([*kept, *rows], comments))


def _number(device: torch.device) -> int | None:
    """Of a GPU; None for the CPU."""
    return device.index or 0 if device.type == "cuda" else None


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, measured"
    processor = find_processor()
    threads = f"{processor.num_threads} thread{'' if processor.num_threads == 1 else 's'}"
    return f"{processor.name}, measured with {threads}"
