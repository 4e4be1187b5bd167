"""Quantizers: rules that round weights, activations, errors and gradients to a grid."""

from bitcycle.quantizers.absmax import AbsMax
from bitcycle.quantizers.base import QUANTIZERS, Quantized, Quantizer, Range, make_quantizer
from bitcycle.quantizers.blocks import FP8, MX, NVFP4
from bitcycle.quantizers.dorefa import DoReFa
from bitcycle.quantizers.pow2 import PowerOfTwo
from bitcycle.quantizers.sbm import SBM
from bitcycle.quantizers.sbm_full import SBMFull
from bitcycle.quantizers.wageubn import WAGEUBN

__all__ = [
    "FP8",
    "MX",
    "NVFP4",
    "QUANTIZERS",
    "SBM",
    "WAGEUBN",
    "AbsMax",
    "DoReFa",
    "PowerOfTwo",
    "Quantized",
    "Quantizer",
    "Range",
    "SBMFull",
    "make_quantizer",
]
