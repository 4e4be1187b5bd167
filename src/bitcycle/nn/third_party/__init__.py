"""Layers for module types of other packages, imported only when such a module is met.

A file here is about one package and is named after it (`transformers_conv1d.py`,
`geometric_linear.py`). It imports that package at its top and registers layers as any other file of
`bitcycle.nn` does, under the float type's qualified name:

    @LAYERS.register("transformers.pytorch_utils.Conv1D")
    class QuantizedConv1D(QuantizedLayer, Conv1D): ...

A row in `FILES` makes the name known to `LAYERS` before the file is imported: the name is listed
and is `in LAYERS` at once, and `LAYERS[name]` imports the file. A layer is called `Quantized` and
its float type's name.

`FINDERS` is for packages whose types have no base class in common to register for: a file with a
function `find_layer(kind)` that looks at a type and returns the layer for it, or None.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_HERE = __name__

# qualified name of the float type -> the file that registers a layer for it
FILES: dict[str, str] = {
    "torch_geometric.nn.conv.gat_conv.GATConv": "geometric_conv",
    "torch_geometric.nn.conv.gcn_conv.GCNConv": "geometric_conv",
    "torch_geometric.nn.conv.gin_conv.GINConv": "geometric_conv",
    "torch_geometric.nn.conv.sage_conv.SAGEConv": "geometric_conv",
    "torch_geometric.nn.dense.linear.Linear": "geometric_linear",
    "transformers.pytorch_utils.Conv1D": "transformers_conv1d",
}

# package -> the file whose `find_layer` is asked about its other types
FINDERS: dict[str, str] = {
    "transformers": "transformers_attention",
    "transformers_modules": "transformers_attention",  # code that comes with a checkpoint
}


def find_layer(kind: type) -> Any:
    """The layer that the finder of the type's package has for it, or None."""
    package = kind.__module__.partition(".")[0]
    if package not in FINDERS or package not in sys.modules:
        return None
    return importlib.import_module(f"{_HERE}.{FINDERS[package]}").find_layer(kind)


def module_names() -> dict[str, str]:
    """`FILES` with the full names of the modules."""
    return {name: f"{_HERE}.{file}" for name, file in FILES.items()}
