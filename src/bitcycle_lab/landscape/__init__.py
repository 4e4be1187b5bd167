"""Loss surfaces around trained weights, and how sharp the minimum is, in numbers."""

from bitcycle_lab.landscape.result import Landscape, Landscapes, Sharpness
from bitcycle_lab.landscape.surface import loss_landscape, run_landscape

__all__ = ["Landscape", "Landscapes", "Sharpness", "loss_landscape", "run_landscape"]
