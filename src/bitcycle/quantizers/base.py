"""The quantizer boundary: tensor -> `Quantized`, with nothing known of layers or kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bitcycle.ops.affine import round_nearest, round_stochastic
from bitcycle.ops.codes import decode, nearest_codes, stochastic_codes
from bitcycle.registry import Registry, unknown_name


@dataclass(frozen=True)
class Quantized:
    """A tensor on a grid: value = scale * code + offset.

    A quantizer fills `codes` (uint8, or int8 with the codes shifted down by half their range) for
    a kernel that multiplies codes, or `values` (already multiplied out) for one that multiplies
    floats. Without a grid (`scale` is None) the values are the tensor itself. `scale` and `offset`
    broadcast against it. `half`: 2^(b-1), by which the two kinds of codes differ. `top`: the most
    bits that this tensor's codes ever take, known without looking.
    """

    scale: Tensor | None = None
    offset: Tensor | None = None
    values: Tensor | None = None
    codes: Tensor | None = None
    half: Tensor | None = None
    top: int = 8

    def dequantize(self) -> Tensor:
        """The float values, multiplied out if they are not there yet."""
        if self.values is not None:
            return self.values
        assert self.codes is not None
        assert self.scale is not None
        assert self.offset is not None
        return decode(self.codes, self.scale, self.offset)

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

    first_last: whether `quantize_model` leaves the first and the last layer of a model float32.
    aggregation: what graph layers sum along edges: "float32" messages (FP-Agg: only their linear
        layers are quantized), or "quantized" ones (Q-Agg).
    """

    roles: ClassVar[frozenset[str]]
    observes: ClassVar[bool] = True  # whether act ranges come from data (and are kept running)
    min_bits: ClassVar[int] = 1  # fewer leave nothing of a tensor

    first_last: Literal["quantized", "float32"] = field(default="quantized", kw_only=True)
    aggregation: Literal["float32", "quantized"] = field(default="float32", kw_only=True)

    def __post_init__(self) -> None:
        self._check_choice("first_last", ("quantized", "float32"))
        self._check_choice("aggregation", ("float32", "quantized"))

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        if getattr(self, name) not in choices:
            raise unknown_name(f"{type(self).__name__} {name}", getattr(self, name), choices)

    @property
    def norm_rule(self) -> str | None:
        """The rule (`bitcycle.nn.norm`) by which BatchNorms normalize; None: they stay float."""
        return None

    @property
    def has_stochastic_error(self) -> bool:
        """Whether encoding an error takes noise."""
        return True

    def prepare(self, role: str, x: Tensor, levels: Tensor | None = None) -> Tensor:
        """Differentiable torch before the grid; most rules have none. Without levels: 2 bits up."""
        return x

    @abstractmethod
    def range_of(self, role: str, x: Tensor, keep: tuple[int, ...] = ()) -> Range:
        """The range this rule takes from the tensor; `keep`: its channel dimensions, if any."""

    @abstractmethod
    def encode(
        self,
        role: str,
        x: Tensor,
        levels: Tensor,
        within: Range,
        key: Tensor | None = None,
        carrier: torch.dtype | None = None,
    ) -> Quantized:
        """The tensor on the grid of `within`; stochastic where the rule is and a key is given.

        carrier: torch.uint8 or torch.int8 for codes, None for values. Codes are asked for only up
        to the bits that `integer_range` has a range for.
        """

    def encode_error(
        self,
        e: Tensor,
        levels: Tensor,
        within: Range,
        key: Tensor | None,
        carrier: torch.dtype | None = None,
    ) -> tuple[Quantized, Quantized]:
        """The error for grad_input and for grad_weight: the same object unless a rule splits."""
        codes: dict[str, Any] = {} if carrier is None else {"carrier": carrier}
        error = self.encode("error", e, levels, within, key, **codes)
        return error, error

    def grad_weight_bits(self, bits: int) -> int | None:
        """Bits of the error that grad_weight reads when grad_input has `bits`; None: float32."""
        return bits

    @property
    def weight_grids(self) -> int:
        """2 if grad_input reads the weight on a grid of its own, 1 if it is the output's."""
        return 1

    def encode_grad(
        self, g: Tensor, levels: Tensor, key: Tensor | None, step: Tensor | None = None
    ) -> Tensor:
        """The weight gradient on its grid; only rules with the role grad have one.

        step: the optimizer step, of a model that a scheduler drives.
        """
        return g

    def integer_range(self, bits: int) -> tuple[int, int] | None:
        """The lowest and highest code; None: `encode` has no codes to give for these bits."""
        return None


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


def put_on_grid(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    levels: Tensor,
    *,
    key: Tensor | None = None,
    carrier: torch.dtype | None = None,
    has_steps: Tensor,
) -> Quantized:
    """q = rint(clamp((x - offset) / scale, 0, levels)), x^ = q * scale + offset.

    With a key the rounding is stochastic. carrier: torch.uint8 or torch.int8 for codes, None for
    values, in the dtype of `x`. has_steps: False where x^ is the offset, to the last bit.

    >>> one = torch.tensor(1.0)
    >>> x = torch.tensor([-1.0, 0.2, 7.6])
    >>> put_on_grid(x, one / 2, one * 0, one * 3, has_steps=one > 0).dequantize()
    tensor([0.0000, 0.0000, 1.5000])
    """
    work = x.to(work_dtype(x))
    if carrier is None:
        if key is not None:
            values = round_stochastic(work, scale, offset, levels, key)
        else:
            values = round_nearest(work, scale, offset, levels)
        return Quantized(scale=scale, offset=offset, values=values.to(x.dtype))
    half = (levels + 1) * 0.5
    if key is not None:
        codes = stochastic_codes(work, scale, offset, levels, key)
    else:
        codes = nearest_codes(work, scale, offset, levels, carrier)
    scale = scale * has_steps
    if codes.dtype == torch.int8:  # shifted down by half their range
        offset = offset + scale * half
    return Quantized(scale, offset, codes=codes, half=half)


def work_dtype(x: Tensor) -> torch.dtype:
    """Grids of half-precision tensors are float32."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def largest(low: Tensor, high: Tensor) -> Tensor:
    """max|x| of a tensor with these extremes."""
    return torch.maximum(low.abs(), high.abs())
