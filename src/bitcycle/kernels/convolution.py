"""The three products of a convolution, of operands that are codes with scales and offsets.

Zero padding is the value 0, not the code 0, so the sums that offsets cost depend on the position
at the border. They are convolutions themselves, of maps with one channel per group: the codes
summed over channels (or over the batch, for grad_weight), and a map of ones.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bitcycle.kernels.geometry import ConvGeometry
from bitcycle.kernels.operand import Arithmetic, Operand, per_channel
from bitcycle.quantizers.base import Quantized


def conv_output(
    arithmetic: Arithmetic, geometry: ConvGeometry, a: Quantized, w: Quantized, bias: Tensor | None
) -> Tensor:
    """(N, Cin, *space) x (Cout, Cin / G, *k) -> (N, Cout, *out); one scale per Cout, or one."""
    x, y = arithmetic.first(a), arithmetic.second(w)
    channels, spread = y.numbers.shape[0], [1] * geometry.num_dims
    w_scale, w_offset = per_channel(y.scale, channels), per_channel(y.offset, channels)
    output = arithmetic.conv(x, y, geometry, w_scale * x.scale)
    # x's offset meets every weight that lies on the image
    column, row = (channels, 1, *spread), (1, channels, *spread)
    weight_sums = y.sum([1], keepdim=True) * w_scale.view(column)
    weight_sums = weight_sums + w_offset.view(column) * y.numbers.shape[1]
    ones = weight_sums.new_ones(1, geometry.groups, *x.numbers.shape[2:])
    constant = geometry.output(ones, weight_sums, None) * x.offset  # (1, Cout, *out)
    if bias is not None:
        constant = constant + bias.view(row)
    # the weight's offset meets the sum of all codes under the kernel
    boxes = geometry.output(_sum_channels(x, geometry.groups), _box(y, geometry), None)
    boxes = _to_channels(boxes, channels)
    return output.addcmul_(boxes, (w_offset * x.scale).view(row)).add_(constant)


def conv_grad_input(
    arithmetic: Arithmetic, geometry: ConvGeometry, e: Quantized, w: Quantized, a_shape: torch.Size
) -> Tensor:
    """(N, Cout, *out) x weight -> (N, Cin, *space), for stride 1, one group, one scale per Cin."""
    assert w.codes is not None
    kernel = w.codes.shape[2:]
    ends = geometry.end_padding or (0,) * geometry.num_dims
    turned = Quantized(
        codes=w.codes.transpose(0, 1).flip(list(range(2, w.codes.dim()))),
        scale=_turn(w.scale),
        offset=_turn(w.offset),
        top=w.top,
    )
    inverse = replace(
        geometry,
        padding=tuple(
            d * (k - 1) - p
            for d, k, p in zip(geometry.dilation, kernel, geometry.padding, strict=True)
        ),
        end_padding=(),
    )
    grad = conv_output(arithmetic, inverse, e, turned, None)
    for dim, end in enumerate(ends, start=2):
        if end:
            grad = grad.narrow(dim, 0, grad.shape[dim] - end)
    assert grad.shape == a_shape
    return grad


def _turn(x: Tensor | None) -> Tensor:
    assert x is not None
    return x.transpose(0, 1) if x.dim() > 1 else x


def conv_grad_weight(
    arithmetic: Arithmetic, geometry: ConvGeometry, e: Quantized, a: Quantized, w_shape: torch.Size
) -> Tensor:
    """(N, Cout, *out) x (N, Cin, *space) -> (Cout, Cin / G, *k); one scale each."""
    x, y = arithmetic.second(e), arithmetic.first(a)
    grad = arithmetic.conv_weight(x, y, geometry, w_shape) * (x.scale * y.scale)
    groups, spread = geometry.groups, w_shape[2:]
    # the input's offset meets the errors at the positions where the tap lies on the image
    ones = grad.new_ones(1, groups, *y.numbers.shape[2:])
    errors = x.value_sum([0], keepdim=True)
    each = torch.Size((w_shape[0], 1, *spread))
    grad += geometry.grad_weight(errors, ones, each) * y.offset
    # the error's offset meets all the codes a tap sees
    codes = y.sum([0], keepdim=True) * y.scale
    flat = grad.new_ones(1, groups, *x.numbers.shape[2:])
    one = torch.Size((groups, w_shape[1], *spread))
    seen = geometry.grad_weight(flat, codes, one) * x.offset  # (G, Cin / G, *k)
    return grad.add_(seen.repeat_interleave(w_shape[0] // groups, dim=0))


def _sum_channels(x: Operand, groups: int) -> Tensor:
    """(N, C, *space) -> (N, G, *space): the codes of each group's channels summed."""
    if groups == 1:
        return x.sum([1], keepdim=True)
    batch, channels, *space = x.numbers.shape
    grouped = replace(x, numbers=x.numbers.reshape(batch, groups, channels // groups, *space))
    return grouped.sum([2])


def _box(w: Operand, geometry: ConvGeometry) -> Tensor:
    return w.scale.new_ones(geometry.groups, 1, *w.numbers.shape[2:])


def _to_channels(maps: Tensor, channels: int) -> Tensor:
    """(N, G, *space) -> what broadcasts against (N, channels, *space)."""
    groups = maps.shape[1]
    return maps if groups == 1 else maps.repeat_interleave(channels // groups, dim=1)
