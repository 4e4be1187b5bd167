"""Quantized convolutions and transposed convolutions: one weight range per output channel."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitcycle.kernels.geometry import ConvGeometry, PointwiseGeometry
from bitcycle.nn.class_swap import LAYERS
from bitcycle.nn.layer import QuantizedLayer

if TYPE_CHECKING:  # the mixins below are only ever combined with these
    _ConvBase = nn.modules.conv._ConvNd
    _TransposedBase = nn.modules.conv._ConvTransposeNd
else:
    _ConvBase = _TransposedBase = object


def _same_padding(
    kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What padding="same" adds on both sides, and the one more it adds at the end."""
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return tuple(t // 2 for t in totals), tuple(t % 2 for t in totals)


class _QuantizedConv(QuantizedLayer, _ConvBase):
    """nn.Conv1d/2d/3d. Padding other than zeros repeats values that are on the grid already."""

    replaced_methods = ("forward", "_conv_forward")

    def forward(self, input: Tensor) -> Tensor:
        """(N, Cin, *space) -> (N, Cout, *space), or both without N."""
        if not self.quantizes(input, self.weight, self.bias):
            return super().forward(input)  # type: ignore[no-any-return]
        is_single = input.dim() == len(self.kernel_size) + 1
        x = input.unsqueeze(0) if is_single else input
        if self.padding_mode != "zeros":
            x = F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
        output = self.multiply(self.own_geometry, x, self.weight, self.bias)
        return output.squeeze(0) if is_single else output

    @property
    def own_geometry(self) -> ConvGeometry:
        """The geometry of its product."""
        find = _make_geometry if torch.compiler.is_compiling() else _find_geometry
        padding = self.padding if isinstance(self.padding, str) else tuple(self.padding)
        return find(
            tuple(self.kernel_size), tuple(self.stride), padding, tuple(self.dilation),
            self.groups, self.padding_mode,
        )  # fmt: skip


def _make_geometry(
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] | str,
    dilation: tuple[int, ...],
    groups: int,
    mode: str,
) -> ConvGeometry:
    """The geometry of a convolution with these attributes."""
    none: tuple[int, ...] = (0,) * len(kernel)
    ends: tuple[int, ...] = ()
    if mode != "zeros":
        padding = none  # the input is padded
    elif padding == "same":
        padding, ends = _same_padding(kernel, dilation)
    elif isinstance(padding, str):
        padding = none
    is_pointwise = set(kernel) == {1} and groups == 1 and not any(padding)
    make = PointwiseGeometry if is_pointwise else ConvGeometry
    return make(stride, tuple(padding), dilation, groups, end_padding=ends)


_find_geometry = functools.cache(_make_geometry)  # one object for equal ones


class _QuantizedConvTranspose(QuantizedLayer, _TransposedBase):
    """nn.ConvTranspose1d/2d/3d, whose weight is (Cin, Cout / groups, *k)."""

    @property
    def own_geometry(self) -> ConvGeometry:
        """The geometry of its product without an output size."""
        return self._geometry_for(self.output_padding)

    def _geometry_for(self, output_padding: tuple[int, ...]) -> ConvGeometry:
        assert isinstance(self.padding, tuple)
        return ConvGeometry(
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            transposed=True,
            output_padding=output_padding,
        )

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """(N, Cin, *space) -> (N, Cout, *space), or both without N."""
        if not self.quantizes(input, self.weight, self.bias):
            return super().forward(input, output_size)  # type: ignore[no-any-return]
        num_dims = len(self.kernel_size)
        is_single = input.dim() == num_dims + 1
        x = input.unsqueeze(0) if is_single else input
        assert isinstance(self.padding, tuple)
        output_padding = self._output_padding(
            input,
            output_size,
            list(self.stride),
            list(self.padding),
            list(self.kernel_size),
            num_dims,
            list(self.dilation),
        )
        geometry = self._geometry_for(tuple(output_padding))
        output = self.multiply(geometry, x, self.weight, self.bias)
        return output.squeeze(0) if is_single else output


@LAYERS.register("torch.nn.modules.conv.Conv1d")
class QuantizedConv1d(_QuantizedConv, nn.Conv1d):
    """A converted nn.Conv1d."""


@LAYERS.register("torch.nn.modules.conv.Conv2d")
class QuantizedConv2d(_QuantizedConv, nn.Conv2d):
    """A converted nn.Conv2d."""


@LAYERS.register("torch.nn.modules.conv.Conv3d")
class QuantizedConv3d(_QuantizedConv, nn.Conv3d):
    """A converted nn.Conv3d."""


@LAYERS.register("torch.nn.modules.conv.ConvTranspose1d")
class QuantizedConvTranspose1d(_QuantizedConvTranspose, nn.ConvTranspose1d):
    """A converted nn.ConvTranspose1d."""


@LAYERS.register("torch.nn.modules.conv.ConvTranspose2d")
class QuantizedConvTranspose2d(_QuantizedConvTranspose, nn.ConvTranspose2d):
    """A converted nn.ConvTranspose2d."""


@LAYERS.register("torch.nn.modules.conv.ConvTranspose3d")
class QuantizedConvTranspose3d(_QuantizedConvTranspose, nn.ConvTranspose3d):
    """A converted nn.ConvTranspose3d."""
