"""Converted layers for module types of other packages, imported on first use.

One file per package, named after it. It imports the package at its top and registers its layers
under the float types' qualified names, as every file of `bitcycle.nn` does:

    @LAYERS.register("transformers.pytorch_utils.Conv1D")
    class QuantizedConv1D(QuantizedLayer, Conv1D): ...

An entry in `FILES` puts the name into `LAYERS` before the file is imported; `LAYERS[name]` imports
it. A layer's name is `Quantized` and its float type's name.

`FINDERS` is for packages whose types have no common base class to register for. The file has a
function `find_layer(kind)` that inspects a type and returns the layer for it, or None.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_HERE = __name__

# qualified name of the float type -> the file that registers a layer for it
FILES: dict[str, str] = {
    "torch_geometric.nn.conv.gat_conv.GATConv": "geometric",
    "torch_geometric.nn.conv.gcn_conv.GCNConv": "geometric",
    "torch_geometric.nn.conv.gin_conv.GINConv": "geometric",
    "torch_geometric.nn.conv.sage_conv.SAGEConv": "geometric",
    "torch_geometric.nn.dense.linear.Linear": "geometric",
    "transformers.pytorch_utils.Conv1D": "transformers",
}

# package -> the file whose `find_layer` knows its other types
FINDERS: dict[str, str] = {
    "transformers": "transformers",
    "transformers_modules": "transformers",  # code that comes with a checkpoint
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
