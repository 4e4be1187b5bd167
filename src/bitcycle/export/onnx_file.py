"""`--to onnx`: a file of integer weights and QuantizeLinear / DequantizeLinear, opset 21."""

from __future__ import annotations

import inspect
import json
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bitcycle.export.files import about, write_bytes
from bitcycle.export.freeze import Frozen
from bitcycle.export.onnx_layers import write_products
from bitcycle.export.onnx_nodes import PURPOSE, translations
from bitcycle.extras import require
from bitcycle.ops.packing import pack_nibbles

OPSET = 21  # the first with 4-bit integers
KEY = "bitcycle"  # of the file's metadata
MAX_SIZE = 2**31 - 1  # of a protobuf message


def write_onnx(
    frozen: Frozen, inputs: Sequence[Tensor], path: Path, source: dict[str, Any]
) -> Counter[str]:
    """Write PATH; the first dimension of every input is free. Returns how the grids were said.

    The frozen model multiplies from codes afterwards.
    """
    onnx = require("onnx", extra="export", purpose=PURPOSE)
    _check_float32(frozen, inputs)
    facts = about(frozen.model, source)
    ways = write_products(frozen)
    inputs = [x if x.shape[0] > 1 else torch.cat([x, x]) for x in inputs]  # 1 would be taken as is
    proto = _trace(frozen, inputs)
    _slim(proto)
    _narrow(onnx, proto)
    entry = proto.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(facts | {"ways": dict(ways)})
    onnx.checker.check_model(proto)
    if proto.ByteSize() > MAX_SIZE:
        raise ValueError("the model is larger than 2 GB, which one ONNX file cannot hold")
    write_bytes(path, proto.SerializeToString())
    return ways


def _check_float32(frozen: Frozen, inputs: Sequence[Tensor]) -> None:
    """The operators that say a grid know float32 only, and mixed types end in torch's errors."""
    named = [*frozen.model.named_parameters(), *((f"input {i}", x) for i, x in enumerate(inputs))]
    for name, value in named:
        if value.is_floating_point() and value.dtype != torch.float32:
            raise ValueError(
                f"ONNX files are written of float32 models: {name} is {value.dtype}; call "
                "model.float() and give float32 inputs first"
            )


def _trace(frozen: Frozen, inputs: Sequence[Tensor]) -> Any:
    with _quiet(), torch.no_grad():
        if not isinstance(frozen.model(*inputs), Tensor):
            raise ValueError("ONNX files are written of models that return one tensor")
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
            raise ValueError(f"torch.onnx cannot write this model: {reason}") from error
    assert program is not None
    return program.model_proto


def _free_batch(frozen: Frozen, inputs: Sequence[Tensor]) -> Any:
    free = {0: torch.export.Dim.DYNAMIC}
    names = list(inspect.signature(type(frozen.model).forward).parameters.values())[1:]
    if names and names[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return (tuple(free for _ in inputs),)
    return tuple(free for _ in inputs)


def _slim(proto: Any) -> None:
    """Leave out the exporter's stack traces, and shapes, which say 8 bits of 4-bit codes."""
    del proto.graph.value_info[:]
    del proto.graph.metadata_props[:]
    for part in (*proto.graph.node, *proto.graph.initializer):
        part.doc_string = ""
        del part.metadata_props[:]


def _narrow(onnx: Any, proto: Any) -> None:
    """Codes and zero points of 4 bits become 4-bit tensors: two codes per byte."""
    for tensor in proto.graph.initializer:
        if not tensor.name.endswith(("_codes4", "_zero4")):
            continue
        codes = torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        tensor.data_type = onnx.TensorProto.UINT4
        del tensor.int32_data[:]
        tensor.raw_data = pack_nibbles(codes).numpy().tobytes()


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's own remarks, which no caller can act on, stay unsaid."""
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
