"""Kernels that are wrong, that raise, or that cannot run here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitcycle.kernels.geometry import Geometry
from bitcycle.kernels.simulate import FloatKernel, FloatProducts
from bitcycle.quantizers.base import Quantized


@dataclass(frozen=True)
class SlightlyWrong(FloatKernel):
    """Its gradients of weights are too large by a thousandth."""

    name: str = "wrong"

    def products(self, geometry: Geometry) -> FloatProducts:
        return _WrongProducts(geometry)


@dataclass(frozen=True)
class _WrongProducts(FloatProducts):
    def grad_weight(
        self, e: Quantized, a: Quantized, w_shape: object, dtype: torch.dtype | None = None
    ) -> Tensor:
        return super().grad_weight(e, a, w_shape, dtype) * 1.001


@dataclass(frozen=True)
class Raising(FloatKernel):
    """Its forward products raise an error of two lines."""

    name: str = "raising"

    def products(self, geometry: Geometry) -> FloatProducts:
        return _RaisingProducts(geometry)


@dataclass(frozen=True)
class _RaisingProducts(FloatProducts):
    def output(
        self, a: Quantized, w: Quantized, bias: Tensor | None, dtype: torch.dtype | None = None
    ) -> Tensor:
        raise RuntimeError("no such instruction\nand more")


@dataclass(frozen=True)
class Elsewhere(FloatKernel):
    """It runs on another type of device."""

    name: str = "elsewhere"

    def reason_against_device(self, device_type: str) -> str | None:
        return f"not on {device_type}"
