"""Converted layers: float modules whose products run on grids."""

from bitcycle.nn.class_swap import LAYERS
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.nn.settings import LayerSettings, ModelState

__all__ = ["LAYERS", "LayerSettings", "ModelState", "QuantizedLayer"]
