"""Loss surfaces around trained weights, and how sharp the minimum is, in numbers."""

from bitcycle.landscape.model import loss_landscape
from bitcycle.landscape.result import Grid, Landscape, Landscapes
from bitcycle.landscape.run import RunSurface, compute, prepare
from bitcycle.landscape.sharpness import Sharpness, measure_sharpness

__all__ = [
    "Grid",
    "Landscape",
    "Landscapes",
    "RunSurface",
    "Sharpness",
    "compute",
    "loss_landscape",
    "measure_sharpness",
    "prepare",
]
