"""Loss surfaces around trained weights, and how sharp the minimum is, in numbers."""

from bitcycle.landscape.result import Landscape, Landscapes, Sharpness, measure_sharpness
from bitcycle.landscape.run import run_landscape
from bitcycle.landscape.surface import loss_landscape

__all__ = [
    "Landscape",
    "Landscapes",
    "Sharpness",
    "loss_landscape",
    "measure_sharpness",
    "run_landscape",
]
