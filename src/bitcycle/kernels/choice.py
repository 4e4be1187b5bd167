"""Choose the kernel of a layer.

"auto" depends on the class of the processor, the layer's largest bits and its shapes, which a table
(choice.csv) maps to a kernel. The class is the instruction set of the native library, or the
compute capability of a GPU. "auto" is `simulate` without the library, without Triton on a GPU, and
where the table has no row; or `bf16`, for a layer that has the level bf16. It depends neither on
the data nor on the number of threads, and nothing is timed: every process and every repetition
chooses alike. `bitcycle bench --tune` measures a table for one machine; the rows of GPUs that are
shipped were not measured. The chosen kernel's name is part of a run's state.
"""

from __future__ import annotations

import csv
import functools
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from bitcycle.gpu import driver
from bitcycle.kernels import bf16
from bitcycle.kernels.base import AUTO, KERNELS, Kernel, make_kernel
from bitcycle.kernels.geometry import (
    ConvGeometry,
    Geometry,
    LinearGeometry,
    MatMulGeometry,
    PointwiseGeometry,
)
from bitcycle.kernels.scaled import reason_against
from bitcycle.native.library import instruction_set, missing_reason, warn_missing
from bitcycle.registry import unknown_name

MAX_CODE_BITS = 8
# below this, what bfloat16 products gain is less than the conversion of their operands takes
MIN_BF16_MACS = 1 << 24
TABLE_SWITCH = "BITCYCLE_KERNEL_TABLE"  # an environment variable: the file of a user's table
SHIPPED_TABLE = Path(__file__).with_name("choice.csv")

# node: a linear layer whose input has a scale for each row, such as the nodes of a graph
# pointwise: a 1x1 convolution on a GPU; on a CPU it is a convolution as others
LAYERS = ("linear", "node", "matmul", "convolution", "pointwise", "depthwise", "recurrent")
# two codes per byte; exact in 16-bit sums; exact in 32-bit sums
TOPS = (4, 7, MAX_CODE_BITS)
KINDS = ("fp8", "mx", "nvfp4")  # of formats, which tensor cores multiply
MEASURED, ROOFLINE = "measured", "roofline"  # where a ratio is from
COLUMNS = ("processor", "layer", "top", "macs_from", "rows_from", "kernel", "ratio", "source")
# A class without rows takes those of the class it extends: of NVIDIA's, the newest before it, but
# consumer GPUs of 12.x have the tensor cores of 8.9, not those of 10.0.
_EXTENDS = {"avx512_vnni": "avx2", "gfx950": "gfx942", "sm_120": "sm_89", "sm_121": "sm_89"}
_CAPABILITY = re.compile(r"sm_(\d+)")

Tops = tuple[int | None, int | None, int | None]  # of act, second operand, error; None: float32


# -- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """The kernel of a kind of layer from some size on.

    top: the most bits of act and weight, or the kind of their format. macs_from:
    multiply-accumulates of the output product from which the row holds. rows_from: the same for its
    rows (tokens, pixels), each of which meets every weight once: few of them do not pay for laying
    out the weight. ratio: the time of forward and backward, of `simulate`'s. source: whether it was
    measured, or is a roofline's.
    """

    processor: str
    layer: str
    top: int | str
    macs_from: int
    rows_from: int
    kernel: str
    ratio: float
    source: str = MEASURED

    def __post_init__(self) -> None:
        if self.layer not in LAYERS:
            raise unknown_name("layer", self.layer, LAYERS)
        if self.source not in (MEASURED, ROOFLINE):
            raise unknown_name("source", self.source, (MEASURED, ROOFLINE))
        if self.top not in (*TOPS, *KINDS):
            known = ", ".join(map(str, (*TOPS, *KINDS)))
            raise ValueError(f"top must be one of {known}, got {self.top}")
        if min(self.macs_from, self.rows_from) < 0 or not self.ratio > 0:
            raise ValueError(
                f"macs_from ({self.macs_from}) and rows_from ({self.rows_from}) must be at least "
                f"0, ratio ({self.ratio}) above 0"
            )
        if make_kernel(self.kernel).is_undecided:
            raise ValueError("kernel 'auto' is what the table decides")


def read_table(path: Path) -> tuple[TableRow, ...]:
    """Read and check a table: CSV with the columns of `TableRow`; # begins a comment line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return tuple(_parse_rows(line for line in lines if line.strip() and line[:1] != "#"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"the table of kernels {path} cannot be read: {why}") from None


def _parse_rows(lines: Iterable[str]) -> Iterable[TableRow]:
    reader = csv.reader(lines, strict=True)
    if tuple(next(reader, ())) != COLUMNS:
        raise ValueError(f"its columns must be {','.join(COLUMNS)}")
    for number, cells in enumerate(reader, start=1):
        try:
            processor, layer, top, macs_from, rows_from, kernel, ratio, source = cells
            yield TableRow(
                processor=processor,
                layer=layer,
                top=top if top in KINDS else int(top),
                macs_from=int(macs_from),
                rows_from=int(rows_from),
                kernel=kernel,
                ratio=float(ratio),
                source=source,
            )
        except (ValueError, csv.Error) as error:
            raise ValueError(f"row {number}: {error}") from None


def table_text(rows: Sequence[TableRow], comments: Sequence[str] = ()) -> str:
    """What `read_table` reads."""
    lines = [*(f"# {line}" for line in comments), ",".join(COLUMNS)]
    for r in rows:
        sizes = f"{r.macs_from},{r.rows_from}"
        lines.append(f"{r.processor},{r.layer},{r.top},{sizes},{r.kernel},{r.ratio:.2f},{r.source}")
    return "\n".join(lines) + "\n"


def kernel_table() -> tuple[TableRow, ...]:
    """The table in use: the user's, or the one that is shipped."""
    return _read_once(Path(os.environ.get(TABLE_SWITCH) or SHIPPED_TABLE))


_read_once = functools.cache(read_table)


def rows_for(
    rows: Iterable[TableRow], processor: str, layer: str, top: int | str
) -> tuple[TableRow, ...]:
    """The rows of a kind of layer, the smallest size first: of a class, or else of one it extends.

    Rows of more bits serve fewer where these have none of their own.
    """
    found = [row for row in rows if row.layer == layer and _serves(row.top, top)]
    classes = {row.processor for row in found}
    own = processor if processor in classes else _extended(processor, classes)
    found = [row for row in found if row.processor == own]
    least = min((int(row.top) for row in found), default=top) if isinstance(top, int) else top
    return tuple(sorted((r for r in found if r.top == least), key=lambda row: row.macs_from))


def _serves(own: int | str, top: int | str) -> bool:
    """Whether rows of bits or of a kind of format hold for others."""
    if isinstance(own, int) and isinstance(top, int):
        return own >= top
    return own == top


def _extended(processor: str, classes: Iterable[str]) -> str | None:
    """Which of the classes a class extends."""
    processor = _EXTENDS.get(processor, processor)
    if (own := _CAPABILITY.fullmatch(processor)) is None:
        return processor
    numbers = [int(each[1]) for each in map(_CAPABILITY.fullmatch, classes) if each is not None]
    older = [number for number in numbers if number <= int(own[1])]
    return f"sm_{max(older)}" if older else None


# -- a kernel that was asked for ------------------------------------------------------------------


def requested_kernel(name: str, *, device_type: str) -> tuple[Kernel, str]:
    """The kernel for a requested name, and why; "auto" is decided when shapes are known.

    >>> kernel, reason = requested_kernel("simulate", device_type="cpu")
    >>> kernel.name, reason
    ('simulate', 'asked for')
    """
    kernel = make_kernel(name)
    device_type = "cpu" if device_type == "meta" else device_type  # where it will most likely be
    if kernel.name in (AUTO, "native") and device_type == "cpu":
        warn_missing()
    if kernel.is_undecided:
        kernel_table()  # a damaged table is an error here, not in the first step
        return kernel, "auto: decided when shapes are known"
    if why := kernel.reason_against_device(device_type):
        return kernel, f"asked for; float32 products: {why}"
    if kernel.name == "bf16" and device_type == "cpu" and not bf16.has_instructions():
        return kernel, f"asked for; slow: {_NO_BF16}"
    return kernel, "asked for"


_NO_BF16 = "no BF16 instructions here"


def _no_code_for(device_type: str) -> str:
    return f"the native library has no code for {device_type}"


def missing_library() -> str:
    """Why there is no native library."""
    return f"no native library ({missing_reason()})"


def recorded_kernel(
    name: str,
    *,
    has_library: bool,
    takes_bf16: bool,
    has_gpu_kernels: bool = False,
    device_type: str = "cpu",
) -> Kernel:
    """The kernel of a run that resumes, which must multiply as when the run began.

    has_library: whether the run began with the native library; `native` multiplies as `simulate`
    without it, or as `bf16`. takes_bf16: whether `native` multiplied bfloat16, which torch can
    without the instructions, too. has_gpu_kernels: whether the run began with those of Triton;
    `gpu` multiplies as `simulate` without them. device_type: where it resumes.
    """
    kernel = make_kernel(name)
    if kernel.name == "gpu":
        why = driver.missing_reason() if device_type == "cuda" else f"the model is on {device_type}"
        if has_gpu_kernels == (why is None):
            return kernel
        if has_gpu_kernels:
            raise ValueError(
                f"the run began with kernel 'gpu' and cannot resume here: {why}; resume it on a "
                "GPU that Triton drives, or begin another with kernel 'simulate'"
            )
        return make_kernel("simulate")
    if kernel.name != "native":
        return kernel
    if has_library == (instruction_set() is not None):
        return replace(kernel, takes_bf16=takes_bf16)
    if has_library:
        raise ValueError(
            f"the run began with kernel {name!r} and cannot resume here: {missing_library()}"
        )
    return make_kernel("bf16" if takes_bf16 else "simulate")


# -- auto -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recurrence:
    """The other product of a recurrent layer: one weight, a few rows at each time step."""

    rows: int
    num_steps: int
    w_shape: tuple[int, int]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all time steps."""
        return self.rows * self.num_steps * prod(self.w_shape)


def decide_kernel(
    geometry: Geometry,
    a: Tensor,
    w: Tensor,
    *,
    tops: Tops,
    recurrence: Recurrence | None = None,
    has_rows: bool = False,
    has_bf16: bool = False,
    recipe: str | None = None,
    has_scaled: bool = False,
) -> tuple[Kernel, str]:
    """What "auto" means for a product of these shapes; tops: bits of act, second operand, error.

    recurrence: the product of the hidden state, which takes the same kernel. has_rows: the first
    operand has a scale for each row. has_bf16: both operands are at the level bf16 at some step.
    recipe: how tensor cores read the formats of a quantizer that has no codes. has_scaled: both
    operands have such a format at some step. A compiler can trace this: sizes are only compared, so
    that one graph serves all sizes between two rows of the table.
    """
    is_gpu = a.device.type == "cuda"
    if recipe is None:
        name, reason = _decide(geometry, a, w, tops, recurrence, has_rows)
    elif has_scaled and is_gpu:
        name, reason = _decide_scaled(geometry, a, w, recipe, recurrence)
    else:
        name, reason = "simulate", f"{recipe.partition('_')[0]} has no integer codes"
    if has_bf16 and name == "simulate" and (recipe is None or is_gpu):
        why = _reason_against_bf16(geometry, a, w, recurrence)
        if why is None:
            name, reason = "bf16", "bfloat16 products at the level bf16"
        elif tops[0] is None and tops[1] is None:
            reason = why
    return make_kernel(name), f"auto: {reason}"


def _reason_against_bf16(
    geometry: Geometry, a: Tensor, w: Tensor, recurrence: Recurrence | None
) -> str | None:
    """Why the products of operands at the level bf16 are float32; None if they are bfloat16."""
    if a.dtype == torch.float64 or w.dtype == torch.float64:
        return "float64"
    if a.device.type == "cuda":
        missing: str | None = _reason_against_bf16_on(a.device.index or 0)
        if missing is not None:
            return missing
    elif a.device.type not in ("cpu", "meta"):
        return f"float32 products on {a.device.type}"
    elif not _has_bf16():
        return _NO_BF16
    if bf16.is_depthwise(geometry, w):
        return "a depthwise convolution multiplies in float32"
    macs = geometry.macs(a.shape, w.shape)
    macs = macs if recurrence is None else macs + recurrence.macs
    return None if macs >= MIN_BF16_MACS else "too small to gain"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_bf16() -> bool:
    return bf16.has_instructions()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _reason_against_bf16_on(gpu: int) -> str | None:
    """Tensor cores multiply bfloat16 from compute capability 8.0 on."""
    processor, missing = find_class(gpu)
    if processor is None:
        return missing
    own = _CAPABILITY.fullmatch(processor)
    is_old = own is not None and int(own[1]) < 80
    return f"no BF16 tensor cores on {processor}" if is_old else None


def _decide(
    geometry: Geometry,
    a: Tensor,
    w: Tensor,
    tops: Tops,
    recurrence: Recurrence | None,
    has_rows: bool,
) -> tuple[str, str]:
    if a.dtype == torch.float64 or w.dtype == torch.float64:
        return "simulate", "float64"
    if tops[0] is None or tops[1] is None:
        return "simulate", "an operand is float32"
    top = max(tops[0], tops[1])
    if top > MAX_CODE_BITS:
        return "simulate", f"more than {MAX_CODE_BITS} bits"
    device = a.device
    if device.type not in ("cpu", "meta", "cuda"):
        return "simulate", _no_code_for(device.type)
    is_gpu = device.type == "cuda"
    if why := KERNELS["gpu" if is_gpu else "native"].reason_against(geometry):
        return "simulate", f"{why} multiplies in float32"
    kind = layer_kind(geometry, w, recurrence, has_rows)
    processor, rows = _candidates(kind, str(top), (device.index or 0) if is_gpu else None)
    if not rows:
        return "simulate", processor
    name, reason = _by_size(geometry, a, w, recurrence, processor, rows)
    return name, "; ".join([reason, *(_float_gradients(tops[2]) if name != "simulate" else [])])


def _decide_scaled(
    geometry: Geometry, a: Tensor, w: Tensor, recipe: str, recurrence: Recurrence | None
) -> tuple[str, str]:
    """For a format that tensor cores of a GPU may multiply."""
    if a.dtype == torch.float64 or w.dtype == torch.float64:
        return "simulate", "float64"
    if recurrence is not None or not isinstance(geometry, LinearGeometry):
        return "simulate", "only linear layers multiply formats on tensor cores"
    processor, rows = _candidates("linear", recipe, a.device.index or 0)
    if not rows:
        return "simulate", processor
    return _by_size(geometry, a, w, None, processor, rows)


def _by_size(
    geometry: Geometry,
    a: Tensor,
    w: Tensor,
    recurrence: Recurrence | None,
    processor: str,
    rows: Sequence[tuple[int, int, str, str]],
) -> tuple[str, str]:
    """The kernel of the largest size that is reached, and why."""
    macs, num_weights = geometry.macs(a.shape, w.shape), w.numel()
    if recurrence is not None:
        macs, num_weights = macs + recurrence.macs, num_weights + prod(recurrence.w_shape)
    kernel, reason, is_small, has_few_rows = "simulate", "", False, False
    for macs_from, rows_from, name, text in rows:  # the largest size that is reached counts
        is_large, has_rows = macs >= macs_from, macs >= rows_from * max(1, num_weights)
        if is_large and has_rows:
            kernel, reason = name, text
        elif name != "simulate":
            is_small, has_few_rows = True, has_few_rows or is_large
    if kernel != "simulate":
        return kernel, reason
    if has_few_rows:
        return "simulate", "too few rows to gain"
    fastest = f"simulate is fastest in the table for {processor}"
    return "simulate", "too small to gain" if is_small else fastest


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _candidates(
    layer: str, bits: str, gpu: int | None
) -> tuple[str, tuple[tuple[int, int, str, str], ...]]:
    """The processor, and (macs_from, rows_from, kernel, reason) by size; or why there is none.

    bits: the most bits of codes, or a recipe of tensor cores. gpu: the number of the device, None
    for the CPU.
    """
    processor, missing = find_class(gpu)
    if processor is None:
        return missing, ()
    kind = bits.partition("_")[0]
    if kind in KINDS and (why := reason_against(bits, processor)):
        return why, ()
    top = kind if kind in KINDS else next(t for t in TOPS if t >= int(bits))
    rows = rows_for(kernel_table(), processor, layer, top)
    if not rows:
        what = f" in {kind}" if kind in KINDS else ""
        return f"the table has no {layer} layers{what} for {processor}", ()
    found = tuple((r.macs_from, r.rows_from, r.kernel, _reason_for(r)) for r in rows)
    return rows[0].processor, found


def find_class(gpu: int | None = None) -> tuple[str | None, str]:
    """The class of the CPU or of a GPU in the table; or None, and why its kernels do not run."""
    if gpu is not None:
        missing = driver.missing_reason()
        return (driver.device_class(gpu), "") if missing is None else (None, missing)
    processor = instruction_set()
    return processor, missing_library() if processor is None else ""


def _reason_for(row: TableRow) -> str:
    if row.source == ROOFLINE:
        return f"{row.kernel}, by a table from the roofline, never measured"
    return f"{row.kernel}, {row.ratio:.2f} of simulate's time in the table for {row.processor}"


def layer_kind(
    geometry: Geometry, w: Tensor, recurrence: Recurrence | None = None, has_rows: bool = False
) -> str:
    """The kind of layer in the table."""
    if has_rows:
        return "node"
    if recurrence is not None:
        return "recurrent"
    if isinstance(geometry, PointwiseGeometry) and w.is_cuda:
        return "pointwise"
    if isinstance(geometry, ConvGeometry):
        return "depthwise" if geometry.groups > 1 and w.shape[1] == 1 else "convolution"
    return "matmul" if isinstance(geometry, MatMulGeometry) else "linear"


def _float_gradients(error_top: int | None) -> list[str]:
    """Why the products of backward are float32 though that of forward is not."""
    if error_top is not None and error_top <= MAX_CODE_BITS:
        return []
    why = "are float32" if error_top is None else f"have more than {MAX_CODE_BITS} bits"
    return [f"grad_input and grad_weight in float32: errors {why}"]
