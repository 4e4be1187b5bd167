"""ONNX files: integer weights with QuantizeLinear and DequantizeLinear, opset 21.

`write_onnx` makes the layers of a frozen model multiply from codes (`use_codes`), traces it with
two custom operators that torch.onnx translates, and packs 4-bit codes. `OnnxModel` runs a file.
"""

from __future__ import annotations

import inspect
import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.export.freeze import Frozen, FrozenProduct, Grid
from bitcycle.export.metadata import about, check_about
from bitcycle.extras import require
from bitcycle.files import write_bytes
from bitcycle.kernels.geometry import Geometry
from bitcycle.model_precision import is_converted, quantized_layers
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.ops.packing import pack_nibbles

PURPOSE = "ONNX files"
OPSET = 21  # the first with 4-bit integers
KEY = "bitcycle"  # of the file's metadata
MAX_BITS = 8
MAX_SIZE = 2**31 - 1  # of a protobuf message
Limits = tuple[float, float] | None


def write_onnx(
    frozen: Frozen, inputs: Sequence[Tensor], path: Path, source: dict[str, Any]
) -> Counter[str]:
    """Write an ONNX file that takes any batch size; returns how its grids are represented.

    Changes the frozen model, which then multiplies from codes.
    """
    onnx = require("onnx", extra="export", purpose=PURPOSE)
    _check_float32(frozen, inputs)
    facts = about(frozen.model, source)
    formats = use_codes(frozen)
    inputs = [
        x if x.shape[0] > 1 else torch.cat([x, x]) for x in inputs
    ]  # a batch size of 1 would be fixed
    proto = _trace(frozen, inputs)
    _strip(proto)
    _pack_4_bit(onnx, proto)
    entry = proto.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(facts | {"ways": dict(formats)})
    onnx.checker.check_model(proto)
    if proto.ByteSize() > MAX_SIZE:
        raise ValueError("the model is larger than 2 GB, which one ONNX file cannot hold")
    write_bytes(path, proto.SerializeToString())
    return formats


def _check_float32(frozen: Frozen, inputs: Sequence[Tensor]) -> None:
    """Raise ValueError for other dtypes, which ONNX's quantization operators do not take."""
    named = [*frozen.model.named_parameters(), *((f"input {i}", x) for i, x in enumerate(inputs))]
    for name, value in named:
        if value.is_floating_point() and value.dtype != torch.float32:
            raise ValueError(
                f"ONNX export needs a float32 model and inputs: {name} is {value.dtype}"
            )


def _trace(frozen: Frozen, inputs: Sequence[Tensor]) -> Any:
    with _quiet(), torch.no_grad():
        if not isinstance(frozen.model(*inputs), Tensor):
            raise ValueError("ONNX export needs a model that returns one tensor")
        try:
            program = torch.onnx.export(
                frozen.model,
                tuple(inputs),
                dynamo=True,
                opset_version=OPSET,
                custom_translation_table=translations(),
                dynamic_shapes=_free_batch(frozen, inputs),
                input_names=[f"input{number}" for number in range(len(inputs))],
                output_names=["output"],
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"torch.onnx cannot export this model: {reason}") from error
    assert program is not None
    return program.model_proto


def _free_batch(frozen: Frozen, inputs: Sequence[Tensor]) -> Any:
    free = {0: torch.export.Dim.DYNAMIC}
    names = list(inspect.signature(type(frozen.model).forward).parameters.values())[1:]
    if names and names[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return (tuple(free for _ in inputs),)
    return tuple(free for _ in inputs)


def _strip(proto: Any) -> None:
    """Remove the exporter's stack traces, and shapes, which claim 8 bits for 4-bit codes."""
    del proto.graph.value_info[:]
    del proto.graph.metadata_props[:]
    for part in (*proto.graph.node, *proto.graph.initializer):
        part.doc_string = ""
        del part.metadata_props[:]


def _pack_4_bit(onnx: Any, proto: Any) -> None:
    """Pack 4-bit codes and zero points, two per byte."""
    for tensor in proto.graph.initializer:
        if not tensor.name.endswith(("_codes4", "_zero4")):
            continue
        codes = torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        tensor.data_type = onnx.TensorProto.UINT4
        del tensor.int32_data[:]
        tensor.raw_data = pack_nibbles(codes).numpy().tobytes()


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off the exporter's logs and warnings inside the `with`."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            for log, level in zip(logs, levels, strict=True):
                log.setLevel(level)


def carrier_bits(bits: int) -> int:
    """The width of the ONNX integer that holds codes: 4 for 4 bits, else 8."""
    return 4 if bits == 4 else 8


def use_codes(frozen: Frozen) -> Counter[str]:
    """Make the frozen model multiply from codes; returns how its grids are represented."""
    formats: Counter[str] = Counter()
    if not is_converted(frozen.model):
        return formats
    products = frozen.by_layer()
    for entry, layer in quantized_layers(frozen.model):
        for row, product in products.get(entry.name, {}).items():
            _check_bits(product)
            for grid, name in ((product.first, f"row{row}"), (product.second, f"second{row}")):
                if grid is None:
                    continue
                is_weight = name.startswith("second") and product.weight is not None
                if is_weight:
                    _register_weight(layer, product, grid)
                else:
                    _register_grid(layer, name, grid)
                formats[format_of(grid, is_weight=is_weight)] += 1
        if entry.name in products:
            layer.__dict__["multiply"] = _multiplier(layer, products[entry.name])
    return formats


def format_of(grid: Grid, *, is_weight: bool) -> str:
    """How ONNX represents a grid, in words."""
    zero = "explicit Add of the real offset" if grid.zero_point is None else "one to one"
    carried = "" if grid.bits in (4, 8) else ", carried in 8 bits"
    clipped = "" if is_weight or _clip_limits(grid) is None else ", clipped first"
    return f"{'weights' if is_weight else 'inputs'} of {grid.bits} bits: {zero}{carried}{clipped}"


def _check_bits(product: FrozenProduct) -> None:
    for grid in (product.first, product.second):
        if grid is not None and grid.bits > MAX_BITS:
            raise ValueError(
                f"layer {product.layer!r} has {grid.bits} bits; ONNX files have at most {MAX_BITS}"
            )


def _clip_limits(grid: Grid | None) -> Limits:
    """The limits of an input whose codes do not use the whole integer; None if they do."""
    if grid is None or (grid.lowest == 0 and grid.bits == carrier_bits(grid.bits)):
        return None
    low, high = grid.limits()
    return float(low.min()), float(high.max())


def _multiplier(layer: QuantizedLayer, products: dict[int, FrozenProduct]) -> Callable[..., Tensor]:
    ends = {
        row: (_clip_limits(each.first), _clip_limits(each.second)) for row, each in products.items()
    }

    def multiply(
        geometry: Geometry, a: Tensor, w: Tensor, bias: Any = None, *, act_row: int = 0
    ) -> Tensor:
        product, (first, second) = products[act_row], ends[act_row]
        if product.first is not None:
            a = _quantize_input(layer, f"row{act_row}", product.first, first, a)
        if product.second is not None:
            if product.weight is None:
                w = _quantize_input(layer, f"second{act_row}", product.second, second, w)
            else:
                w = _dequantize_weight(layer, act_row, product.second).view(w.shape)
        return geometry.output(a, w, bias)

    return multiply


def _register_grid(layer: QuantizedLayer, name: str, grid: Grid) -> None:
    carrier = carrier_bits(grid.bits)
    zero = grid.zero_point
    layer.register_buffer(f"{name}_scale", grid.scale.clone())
    whole = torch.zeros_like(grid.scale) if zero is None else zero
    layer.register_buffer(f"{name}_zero{carrier}", whole.to(torch.uint8))
    if zero is None:
        layer.register_buffer(f"{name}_offset", grid.offset.clone())


def _quantize_input(
    layer: QuantizedLayer, name: str, grid: Grid, ends: Limits, x: Tensor
) -> Tensor:
    carrier = carrier_bits(grid.bits)
    buffers = layer._buffers
    offset = buffers.get(f"{name}_offset")
    if ends is not None:
        x = x.clamp(*ends)
    if offset is not None:
        x = x - offset
    x = torch.ops.bitcycle.fake_quantize(
        x, buffers[f"{name}_scale"], buffers[f"{name}_zero{carrier}"], carrier
    )
    return x if offset is None else x + offset


def _register_weight(layer: QuantizedLayer, product: FrozenProduct, grid: Grid) -> None:
    row, carrier, zero = product.row, carrier_bits(grid.bits), grid.zero_point
    if sum(size > 1 for size in grid.scale.shape) > 1:
        raise ValueError(
            f"layer {product.layer!r} has scales along two dimensions of its weight (a grouped "
            "transposed convolution), which ONNX cannot represent"
        )
    codes = product.codes.to(torch.uint8)
    whole = torch.zeros_like(grid.scale) if zero is None else zero
    layer.register_buffer(f"weight{row}_codes{carrier}", codes)
    layer.register_buffer(f"weight{row}_scale", grid.scale.reshape(-1).clone())
    layer.register_buffer(f"weight{row}_zero{carrier}", whole.reshape(-1).to(torch.uint8))
    if zero is None:
        layer.register_buffer(f"weight{row}_offset", grid.offset.clone())


def _dequantize_weight(layer: QuantizedLayer, row: int, grid: Grid) -> Tensor:
    carrier, buffers = carrier_bits(grid.bits), layer._buffers
    axis = next((dim for dim, size in enumerate(grid.scale.shape) if size > 1), 0)
    weight: Tensor = torch.ops.bitcycle.dequantize(
        buffers[f"weight{row}_codes{carrier}"],
        buffers[f"weight{row}_scale"],
        buffers[f"weight{row}_zero{carrier}"],
        axis,
    )
    offset = buffers.get(f"weight{row}_offset")
    return weight if offset is None else weight + offset


@torch.library.custom_op("bitcycle::fake_quantize", mutates_args=())
def fake_quantize(x: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    """Quantize a tensor to unsigned codes of 4 or 8 bits, and back."""
    shift = zero.to(x.dtype)
    codes = ((x / scale).round() + shift).clamp(0, 2**bits - 1)
    return (codes - shift) * scale


@fake_quantize.register_fake
def _(x: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("bitcycle::dequantize", mutates_args=())
def dequantize(codes: Tensor, scale: Tensor, zero: Tensor, axis: int) -> Tensor:
    """The values of a weight's codes."""
    shape = [1] * codes.dim()
    shape[axis] = -1
    return (codes.to(scale.dtype) - zero.to(scale.dtype).view(shape)) * scale.view(shape)


@dequantize.register_fake
def _(codes: Tensor, scale: Tensor, zero: Tensor, axis: int) -> Tensor:
    return torch.empty_like(codes, dtype=scale.dtype)


def translations() -> dict[Any, Callable[..., Any]]:
    """The ONNX operators of `fake_quantize` and `dequantize`."""
    op = require("onnxscript", extra="export", purpose=PURPOSE).opset21

    def write_fake_quantize(x: Any, scale: Any, zero: Any, bits: int) -> Any:
        return op.DequantizeLinear(op.QuantizeLinear(x, scale, zero), scale, zero)

    def write_dequantize(codes: Any, scale: Any, zero: Any, axis: int) -> Any:
        return op.DequantizeLinear(codes, scale, zero, axis=axis)

    return {
        torch.ops.bitcycle.fake_quantize.default: write_fake_quantize,
        torch.ops.bitcycle.dequantize.default: write_dequantize,
    }


class OnnxModel(nn.Module):
    """An ONNX file as a module for evaluation, run by ONNX Runtime on the CPU.

    about: the metadata of the file. ONNX Runtime may fuse nodes, which changes results by rounding;
    optimize=False runs the graph as it is written.
    """

    def __init__(self, path: str | Path, *, optimize: bool = True) -> None:
        super().__init__()
        runtime = require("onnxruntime", extra="export", purpose=PURPOSE)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        if not optimize:
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self.session = runtime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
            facts = json.loads(self.session.get_modelmeta().custom_metadata_map.get(KEY, "null"))
            self.names = [entry.name for entry in self.session.get_inputs()]
        except Exception as error:  # the runtime's errors have no common type
            raise ValueError(f"ONNX Runtime cannot read {path}: {error}") from None
        self.about: dict[str, Any] = check_about(facts, Path(path))

    def forward(self, *inputs: Tensor | None) -> Tensor:
        """The model's output, on the CPU."""
        arrays = [x.detach().cpu().contiguous().numpy() for x in inputs if x is not None]
        output, *_ = self.session.run(None, dict(zip(self.names, arrays, strict=True)))
        return torch.from_numpy(output)
