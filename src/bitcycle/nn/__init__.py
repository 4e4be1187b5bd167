"""Converted layers: float modules whose products run on grids."""

from bitcycle.nn.base import LAYERS, LayerSettings, ModelState, QuantizedLayer

__all__ = ["LAYERS", "LayerSettings", "ModelState", "QuantizedLayer"]
