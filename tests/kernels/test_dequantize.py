"""`dequantize` multiplies the float32 values of codes, as `simulate` does those it is given."""

from __future__ import annotations

import torch

from bitcycle.kernels import KERNELS, ConvGeometry, LinearGeometry
from bitcycle.quantizers.base import Quantized

from .operands import numbers, quantized

SIMULATE, DEQUANTIZE = KERNELS["simulate"], KERNELS["dequantize"]


def test_it_takes_codes_and_simulate_does_not() -> None:
    assert DEQUANTIZE.takes_codes
    assert not SIMULATE.takes_codes


def test_its_products_are_those_of_simulate_to_the_last_bit() -> None:
    geometry = LinearGeometry()
    a = quantized(numbers((7, 5), "centred", 0), (5, 8))
    w = quantized(numbers((3, 5), "below", 1), (5, 8), torch.int8, keep=(0,))
    e = quantized(numbers((7, 3), "tiny", 2), (5, 8))
    values = [Quantized(values=q.dequantize()) for q in (a, w, e)]
    pairs = [
        (DEQUANTIZE.output(geometry, a, w, None), SIMULATE.output(geometry, *values[:2], None)),
        (
            DEQUANTIZE.grad_input(geometry, e, w, torch.Size((7, 5))),
            SIMULATE.grad_input(geometry, values[2], values[1], torch.Size((7, 5))),
        ),
        (
            DEQUANTIZE.grad_weight(geometry, e, a, torch.Size((3, 5))),
            SIMULATE.grad_weight(geometry, values[2], values[0], torch.Size((3, 5))),
        ),
    ]
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_channels_last_codes_give_a_channels_last_output() -> None:
    geometry = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
    a = quantized(numbers((2, 8, 6, 5), "centred", 0), (4, 4), layout="channels_last")
    w = quantized(numbers((4, 8, 3, 3), "centred", 1), (4, 4), torch.int8, keep=(0,))
    output = DEQUANTIZE.output(geometry, a, w, None)
    assert output.is_contiguous(memory_format=torch.channels_last)
