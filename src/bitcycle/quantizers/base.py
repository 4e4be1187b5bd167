"""The quantizer boundary: tensor -> `Quantized`, with nothing known of layers or kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bitcycle.registry import Registry


@dataclass(frozen=True)
class Quantized:
    """A tensor on a grid: value = scale * code + offset.

    A quantizer fills `codes` (an integer dtype) for a kernel that multiplies codes, or `values`
    (already multiplied out) for one that multiplies floats. Without a grid (`scale` is None) the
    values are the tensor itself. `scale` and `offset` broadcast against it.
    """

    scale: Tensor | None = None
    offset: Tensor | None = None
    values: Tensor | None = None
    codes: Tensor | None = None

    def dequantize(self) -> Tensor:
        """The float values, multiplied out if they are not there yet."""
        if self.values is not None:
            return self.values
        assert self.codes is not None
        assert self.scale is not None
        assert self.offset is not None
        return self.codes * self.scale + self.offset

    def integer_codes(self) -> Tensor:
        """The codes as whole numbers in the values' dtype, recovered from the values if need be."""
        if self.codes is not None:
            return self.codes
        assert self.values is not None
        if self.scale is None or self.offset is None:
            raise ValueError("a float32 tensor has no codes; give its role bits first")
        return torch.round((self.values - self.offset) / self.scale)


Range = tuple[Tensor, Tensor]  # lowest and highest value, broadcastable against the tensor


@dataclass(frozen=True)
class Quantizer(ABC):
    """Rules that put the tensors of some roles on a grid; frozen, stateless, shared by all layers.

    A rule sees the level count 2^b - 1 as a tensor, never the bits as a number: the bits are
    data. Running ranges belong to the layer, which hands them in as `within`.
    """

    roles: ClassVar[frozenset[str]]
    observes: ClassVar[bool] = True  # whether act ranges come from data (and are kept running)

    @property
    def has_stochastic_error(self) -> bool:
        """Whether encoding an error takes noise."""
        return True

    def prepare(self, role: str, x: Tensor) -> Tensor:
        """Differentiable torch before the grid; most rules have none."""
        return x

    @abstractmethod
    def range_of(self, role: str, x: Tensor, keep: tuple[int, ...] = ()) -> Range:
        """The range this rule takes from the tensor; `keep`: its channel dimensions, if any."""

    @abstractmethod
    def encode(
        self, role: str, x: Tensor, levels: Tensor, within: Range, key: Tensor | None = None
    ) -> Quantized:
        """The tensor on the grid of `within`; stochastic where the rule is and a key is given."""

    def encode_error(
        self, e: Tensor, levels: Tensor, within: Range, key: Tensor | None
    ) -> tuple[Quantized, Quantized]:
        """The error for grad_input and for grad_weight: the same object unless a rule splits."""
        error = self.encode("error", e, levels, within, key)
        return error, error

    def encode_grad(self, g: Tensor, levels: Tensor, key: Tensor | None) -> Tensor:
        """The weight gradient on its grid; only rules with the role grad have one."""
        return g

    @abstractmethod
    def integer_range(self, bits: int) -> tuple[int, int] | None:
        """The lowest and highest code, or None when no int8 kernel can carry the grid."""


QUANTIZERS: Registry[type[Quantizer]] = Registry("quantizer", "bitcycle.quantizers")


def make_quantizer(quantizer: str | Quantizer) -> Quantizer:
    """A configured quantizer as it is, or the one of that name with its defaults."""
    if isinstance(quantizer, Quantizer):
        return quantizer
    if not isinstance(quantizer, str):
        raise ValueError(
            f"a quantizer is a name or an object like bc.quantizers.SBM(), got {quantizer!r}"
        )
    return QUANTIZERS[quantizer]()
