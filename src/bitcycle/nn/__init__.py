"""Converted layers: float modules whose products run on grids."""

from bitcycle.nn.base import QuantizedLayer
from bitcycle.nn.settings import LayerSettings, ModelState
from bitcycle.nn.swap import LAYERS

__all__ = ["LAYERS", "LayerSettings", "ModelState", "QuantizedLayer"]
