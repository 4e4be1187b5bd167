"""An exported ONNX file as a module: called with tensors, run by ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.export.files import check_format
from bitcycle.export.onnx_file import KEY
from bitcycle.export.onnx_nodes import PURPOSE
from bitcycle.extras import require


class OnnxModel(nn.Module):
    """Takes the inputs that the exported model took, in their order. Evaluation only.

    about: what the file says of its bits and its source. ONNX Runtime may fuse nodes, which moves
    results by rounding; optimize=False runs the graph as it is written.
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
        except Exception as error:  # the runtime's errors have no type in common
            raise ValueError(f"ONNX Runtime cannot read {path}: {error}") from None
        self.about: dict[str, Any] = check_format(facts, Path(path))

    def forward(self, *inputs: Tensor | None) -> Tensor:
        """The model's output, on the CPU."""
        given = [x.detach().cpu().contiguous().numpy() for x in inputs if x is not None]
        output, *_ = self.session.run(None, dict(zip(self.names, given, strict=True)))
        return torch.from_numpy(output)
