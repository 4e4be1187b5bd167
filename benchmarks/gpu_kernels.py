"""Compile every GPU kernel without a GPU; print what it needs and its matrix instructions.

    python benchmarks/gpu_kernels.py [sm_80 sm_89 sm_90 sm_100 gfx942]

Kernels are compiled as the library launches them: its functions run on tensors of the meta device,
and what they would launch is recorded. Matrix instructions are those of tensor cores (AMD: matrix
cores), in the machine's code. Nothing here says how fast a kernel is.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bitcycle.gpu import blocks, grids, integers, maps, scaled
from bitcycle.gpu.driver import NUM_WARPS
from bitcycle.native.encode import Rule
from bitcycle.native.products import Codes

MODULES = (grids, blocks, integers, maps, scaled)

TARGETS = {
    **{f"sm_{arch}": GPUTarget("cuda", arch, 32) for arch in (80, 89, 90, 100)},
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int32: "*i32",
}
_OPTIONS = {"num_warps", "num_stages", "enable_fp_fusion"}  # of the compiler
_MATRIX = r"\b(IMMA|HMMA|QMMA|IGMMA|HGMMA|QGMMA|UTC[A-Z]*MMA)\b|\bv_mfma_([if]32\w+)"


class Launch(NamedTuple):
    """What a call of the library would launch."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]

    @property
    def name(self) -> str:
        """The kernel's."""
        return str(self.kernel.__name__.removeprefix("_"))


class Needs(NamedTuple):
    """What a compiled kernel needs of a processor."""

    registers: int
    shared: int  # bytes
    spilled: int  # bytes of stack
    matrix: dict[str, int]  # matrix instructions in the code
    code: str  # PTX, or the assembly of an AMD GPU


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Launches are written down instead of made."""
    found: list[Launch] = []

    def record(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> bool:
        found.append(Launch(kernel, arguments, constants))
        return True

    with ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(mock.patch.object(module, "launch", record))
        yield found


def launches() -> dict[str, Launch]:
    """The launches of typical calls, by what they are for."""
    made: dict[str, Launch] = {}
    for name, call in _calls().items():
        with recording() as found:
            call()
        for launch in found:
            if all(describe(launch) != describe(other) for other in made.values()):
                made[f"{launch.name}: {name}"] = launch
    return made


def _calls() -> dict[str, Callable[[], Any]]:
    x = torch.empty(8192, 4096, device="meta")
    w = torch.empty(4096, 4096, device="meta")
    maps = torch.empty(64, 128, 56, 56, device="meta").to(memory_format=torch.channels_last)
    half = x.to(torch.bfloat16)
    levels, numbers, key, clock = (
        torch.empty(shape, dtype=torch.int32, device="meta") for shape in ((), 3, 2, 3)
    )
    scalar, rows = torch.empty((), device="meta"), torch.empty(4096, 1, device="meta")
    codes = x.to(torch.uint8)
    many, signs = torch.empty(4096, device="meta"), torch.empty(16, device="meta")

    def quantize(x: Tensor, within: Any, rule: Rule, dtype: torch.dtype, **given: Any) -> Any:
        return lambda: grids.quantize(x, within, levels, rule, dtype=dtype, **given)

    def round_blocks(kind: str, dims: Any, sizes: Any, **given: Any) -> Any:
        usual = {"rounds_up": False, "tensor_scale": True, "key": None, "signs": None}
        return lambda: blocks.round_blocks(
            x, numbers, kind=kind, dims=dims, blocks=sizes, **{**usual, **given}
        )

    return {
        "tensor, nearest": quantize(x, None, Rule.FROM_LOW, torch.uint8),
        "tensor, stochastic, clock": quantize(x, None, Rule.WITH_ZERO, torch.uint8, key=clock),
        "rows, symmetric": quantize(w, 0, Rule.SYMMETRIC, torch.uint8),
        "rows, power, values": quantize(w, 0, Rule.POWER, torch.float32, key=key),
        "bfloat16, values": quantize(half, None, Rule.FROM_LOW, torch.bfloat16),
        "channels last": quantize(maps, 1, Rule.WITH_ZERO, torch.float32),
        "given range": quantize(x, (scalar, scalar), Rule.FROM_LOW, torch.uint8),
        "given grid": lambda: grids.round_to_grid(x, scalar, scalar, scalar, key, torch.float32),
        "range": lambda: grids.value_range(x),
        "codes": lambda: grids.decode(codes, scalar, scalar),
        "key": lambda: grids.noise_key(clock),
        "clock": lambda: grids.count_up(clock, 2),
        "flags": lambda: grids.flag_nonfinite(many, 1, rows, rows),
        "running range": lambda: grids.observe(
            torch.empty(2, 3, device="meta"), 1, *[scalar] * 2, 0.1
        ),
        "packed": lambda: grids.pack_nibbles(codes),
        "unpacked": lambda: grids.unpack_nibbles(codes, codes),
        "bf16": lambda: blocks.round_elements(x, numbers, None),
        "fp16, stochastic": lambda: blocks.round_elements(x, numbers, key),
        "flag": lambda: blocks.to_bf16(x, scalar),
        "transform": lambda: blocks.hadamard(x, 0, signs),
        "fp8, tensor": round_blocks("fp8", (), ()),
        "fp8, rows": round_blocks("fp8", (1,), (None,)),
        "fp8, 128 x 128": round_blocks("fp8", (0, 1), (128, 128), key=key),
        "mx": round_blocks("mx", (1,), (32,)),
        "mx, columns": round_blocks("mx", (0,), (32,), rounds_up=True),
        "nvfp4, 16 x 16": round_blocks("nvfp4", (0, 1), (16, 16)),
        "nvfp4, transform": round_blocks("nvfp4", (0,), (16,), key=key, signs=signs),
        **_products(),
        **_convolutions(),
        **_scaled(),
    }


def _products() -> dict[str, Callable[[], Any]]:
    """Of integers: the three of a linear layer and of a 1x1 convolution, and of two activations."""

    def codes(*shape: int, scales: int = 1) -> Codes:
        grid = torch.empty(scales, device="meta")
        return Codes(torch.empty(shape, dtype=torch.uint8, device="meta"), grid, grid, grid)

    def turn(x: Codes) -> Codes:
        return x._replace(codes=x.codes.mT)

    def over_maps(x: Codes) -> Codes:
        return x._replace(codes=x.codes.transpose(0, 1).unsqueeze(0))

    a, w, e = codes(8192, 4096), codes(4096, 4096, scales=4096), codes(8192, 4096)
    heads = codes(128, 1024, 64)
    rows, few = codes(128, 256, scales=128), codes(128, 256, scales=256)
    long, folded = codes(4096, 65536), codes(4096, 65536, scales=65536)
    maps, taps = codes(64, 256, 784), codes(512, 256, scales=512)  # (N, C, P)
    error = codes(64, 512, 784)
    bias, half = torch.empty(4096, device="meta"), torch.bfloat16
    return {
        "output": lambda: integers.multiply(a, w, bias),
        "output, bfloat16": lambda: integers.multiply(a, w, bias, half),
        "grad_weight": lambda: integers.multiply(turn(e), turn(a)),
        "1x1, output": lambda: integers.multiply(turn(maps), taps, is_turned=True),
        "1x1, grad_input": lambda: integers.multiply_folded(
            turn(error), turn(taps), is_turned=True
        ),
        "1x1, grad_weight": lambda: integers.multiply(over_maps(error), over_maps(maps)),
        "heads": lambda: integers.multiply(heads, heads),
        "rows, small": lambda: integers.multiply(rows, rows),
        "long": lambda: integers.multiply(long, long),
        "grad_input": lambda: integers.multiply_folded(e, turn(w)),
        "grad_input, bfloat16": lambda: integers.multiply_folded(e, turn(w), half),
        "grad_input, small": lambda: integers.multiply_folded(rows._replace(scale=bias[:1]), few),
        "grad_input, long": lambda: integers.multiply_folded(long, folded),
    }


def _convolutions() -> dict[str, Callable[[], Any]]:
    """Of centred codes: their operands and results."""
    meta, last = torch.device("meta"), torch.channels_last
    flat = torch.empty(64, 128, 28, 28, dtype=torch.uint8, device=meta)
    x, sums = (each.to(memory_format=last) for each in (flat, flat.to(torch.bfloat16)))
    w, one = (
        torch.empty(128, 128, 3, 3, dtype=torch.uint8, device=meta),
        torch.empty(1, device=meta),
    )
    many = torch.empty(128, device=meta)
    around, inside = x[:, :1].float(), x[:1].float()
    return {
        "weight": lambda: maps.centre(w, many, many, 1, True, False),
        "input": lambda: maps.centre(x, one, one, 1, False, False),
        "input, contiguous": lambda: maps.centre(flat, one, one, 1, False, False),
        "error, doubled": lambda: maps.centre(x, one, one, 1, False, True),
        "error, over the batch": lambda: maps.centre(x, one, one, 0, True, False),
        "weight of grad_input": lambda: maps.fold(w, many, many),
        "convolution": lambda: maps.combine(sums, one, one, many, many, around, inside, many),
        "convolution, bfloat16": lambda: maps.combine(
            sums, one, one, many, many, around, inside, many, torch.bfloat16
        ),
        "folded": lambda: maps.combine(sums, one, one, many, None, None, inside, None),
    }


def _scaled() -> dict[str, Callable[[], Any]]:
    """Matrices for `scaled_mm`."""
    x = torch.empty(8192, 4096, device="meta")
    half = x.to(torch.bfloat16)
    numbers, key = (torch.empty(n, dtype=torch.int32, device="meta") for n in (3, 2))
    signs, flag = torch.empty(16, device="meta"), torch.empty((), device="meta")

    def encode(
        kind: str, dims: Any, sizes: Any, dim: int, element: str, x: Tensor = half, **given: Any
    ) -> Any:
        return lambda: scaled.encode(
            x, numbers, kind=kind, dims=dims, blocks=sizes, dim=dim, element=element, **given
        )

    return {
        "scaled fp8, rows, turned": encode("fp8", (0,), (None,), 0, "e4m3", x, key=key),
        "scaled nvfp4, turned, transform": encode(
            "nvfp4", (0,), (16,), 0, "e2m1", x, key=key, signs=signs, flag=flag
        ),
        "scaled nvfp4": encode("nvfp4", (1,), (16,), 1, "e2m1"),
        "scaled nvfp4, 16 x 16": encode("nvfp4", (0, 1), (16, 16), 1, "e2m1", x),
        "scaled nvfp4, 16 x 16, turned": encode("nvfp4", (0, 1), (16, 16), 0, "e2m1", x),
        "scaled mx": encode("mx", (1,), (32,), 1, "e4m3"),
        "scaled mx, turned, up": encode("mx", (0,), (32,), 0, "e5m2", rounds_up=True, key=key),
        "scaled fp8, tensor": encode("fp8", (), (), 1, "e4m3", flag=flag),
        "scaled fp8, tensor, turned": encode("fp8", (), (), 0, "e5m2", x, key=key),
        "scaled fp8, rows": encode("fp8", (1,), (None,), 1, "e4m3"),
        "scaled fp8, 1 x 128": encode("fp8", (1,), (128,), 1, "e4m3"),
        "scaled fp8, 1 x 128, turned": encode("fp8", (0,), (128,), 0, "e4m3", x, key=key),
        "scaled fp8, 128 x 128": encode("fp8", (0, 1), (128, 128), 1, "e4m3", x),
        "scaled fp8, 128 x 128, turned": encode("fp8", (0, 1), (128, 128), 0, "e4m3", x),
    }


def describe(launch: Launch) -> tuple[Any, ...]:
    """The kernel, signature, constants, attributes and options that a launch is compiled for."""
    names = launch.kernel.arg_names
    given = dict(zip(names, launch.arguments, strict=False)) | launch.constants
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(names):
        value = given[name]
        is_constant = (
            name in launch.constants or value is None or (type(value) is int and value == 1)
        )
        if is_constant:
            signature[name], constants[(place,)] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[name], attributes[(place,)] = (
                _POINTERS[value.dtype],
                [["tt.divisibility", 16]],
            )
        else:
            signature[name] = (
                "fp32" if isinstance(value, float) else "i32" if value < 2**31 else "i64"
            )
            if type(value) is int and value % 16 == 0:
                attributes[(place,)] = [["tt.divisibility", 16]]
    options = {name: value for name, value in launch.constants.items() if name in _OPTIONS}
    return launch.kernel, signature, constants, attributes, options


def build(launch: Launch, target: GPUTarget) -> Needs:
    """Compile a launch for a target, as the just-in-time compiler would."""
    *source, given = describe(launch)
    options = {"num_warps": NUM_WARPS, "enable_fp_fusion": False} | given
    return _read(triton.compile(ASTSource(*source), target=target, options=options), target)


def _read(compiled: Any, target: GPUTarget) -> Needs:
    shared = compiled.metadata.shared
    if target.backend == "hip":
        code = compiled.asm["amdgcn"]
        registers = int(re.findall(r"\.vgpr_count:\s+(\d+)", code)[0])
        spilled = int(re.findall(r"ScratchSize: (\d+)", code)[0])
        return Needs(registers, shared, spilled, _count_matrix(code), code)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        used = _run_tool("cuobjdump", "-res-usage", file.name)
        code = compiled.asm["ptx"]
        has_products = "mma" in code
        matrix = _count_matrix(_run_tool("nvdisasm", "-c", file.name)) if has_products else {}
    registers, stack, local = (
        int(re.findall(rf"{name}:(\d+)", used)[0]) for name in ("REG", "STACK", "LOCAL")
    )
    return Needs(registers, shared, stack + local, matrix, code)


def _run_tool(name: str, *arguments: str) -> str:
    command = [str(_TOOLS / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def _count_matrix(code: str) -> dict[str, int]:
    found = (a or b for a, b in re.findall(_MATRIX, code))
    return dict(Counter(found))


def main(names: list[str]) -> None:
    """Print a table with a row per kernel and target."""
    made = launches()
    width = max(map(len, made))
    print(f"{'kernel':{width}}  target  registers  shared  spilled  matrix instructions")
    for target in names or TARGETS:
        for name, launch in made.items():
            needs = build(launch, TARGETS[target])
            numbers = f"{needs.registers:9}  {needs.shared:6}  {needs.spilled:7}"
            matrix = ", ".join(f"{count} {kind}" for kind, count in needs.matrix.items())
            print(f"{name:{width}}  {target:6}  {numbers}  {matrix}".rstrip(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
