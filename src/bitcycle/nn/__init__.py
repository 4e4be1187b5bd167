"""Converted layers: float modules whose products run on grids."""

from bitcycle.nn.class_swap import LAYERS
from bitcycle.nn.layer import LayerSettings, ModelState, QuantizedLayer

__all__ = ["LAYERS", "LayerSettings", "ModelState", "QuantizedLayer"]
