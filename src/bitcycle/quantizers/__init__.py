"""Quantizers: rules that put weights, activations, errors and gradients on a grid."""

from bitcycle.quantizers.base import QUANTIZERS, Quantized, Quantizer, Range, make_quantizer
from bitcycle.quantizers.sbm import SBM

__all__ = ["QUANTIZERS", "SBM", "Quantized", "Quantizer", "Range", "make_quantizer"]
