"""The interface of a quantizer: rules that round tensors to a grid, by role.

A quantizer does not depend on layers or kernels. It turns a tensor into a `Quantized`: codes or
values with a scale and an offset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from bitcycle.bits import Bits
from bitcycle.formats.scaled import Scaled
from bitcycle.ops.affine import (
    Rule,
    grid_step,
    quantize_at_once,
    round_nearest,
    round_stochastic,
    value_range,
)
from bitcycle.ops.codes import decode, nearest_codes, stochastic_codes
from bitcycle.registry import Registry, unknown_name


@dataclass(frozen=True)
class Quantized:
    """A tensor on a grid: value = scale * code + offset.

    A quantizer fills `codes` for a kernel that multiplies codes, and `values` otherwise. codes:
    uint8. half: 2^(b-1) for codes of b bits. values: float; the tensor itself if there is no grid
    (`scale` is None). scale, offset: broadcast against the tensor. top: the most bits that the
    codes ever have. scaled: in place of both, a matrix for tensor cores.
    """

    scale: Tensor | None = None
    offset: Tensor | None = None
    values: Tensor | None = None
    codes: Tensor | None = None
    half: Tensor | None = None
    top: int = 8
    scaled: Scaled | None = None

    def dequantize(self) -> Tensor:
        """Return the float values, computed from the codes if there are no values."""
        if self.values is not None:
            return self.values
        if self.scaled is not None:
            return self.scaled.dequantize()
        assert self.codes is not None
        assert self.scale is not None
        assert self.offset is not None
        return decode(self.codes, self.scale, self.offset)

    def with_top(self, top: int) -> Quantized:
        """Return a copy with another `top`; faster than `dataclasses.replace`."""
        return Quantized(self.scale, self.offset, self.values, self.codes, self.half, top)

    def integer_codes(self) -> Tensor:
        """Return the codes, or integers recovered from the values, in the dtype of the values."""
        if self.codes is not None:
            return self.codes
        assert self.values is not None
        if self.scale is None or self.offset is None:
            raise ValueError("a float32 tensor has no codes")
        return torch.round((self.values - self.offset) / self.scale)


@dataclass(frozen=True)
class OperandView:
    """How one of the three matmuls reads an operand, for formats whose scales lie along an axis.

    shape: the operand reshaped, so that `dim` is the axis that the matmul sums over. tile: of a
    weight, the dimensions of its output and input channels in `tile_shape`. is_tokens: the axis has
    the tokens of a linear layer.
    """

    matmul: str
    shape: tuple[int, ...]
    dim: int
    tile_shape: tuple[int, ...] = ()
    tile: tuple[int, int] | None = None
    is_tokens: bool = False

    def blocks(
        self, size: int | None, *, has_tiles: bool = False
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int | None, ...]]:
        """The shape, the dimensions and the sizes of blocks along the summed axis.

        has_tiles: a weight has square tiles instead. size: None for the whole axis.
        """
        if has_tiles and self.tile is not None:
            return self.tile_shape, self.tile, (size, size)
        return self.shape, (self.dim,), (size,)


Range = tuple[Tensor, Tensor]  # lowest and highest value, broadcastable against the tensor


@dataclass(frozen=True)
class GridRule:
    """How the native library makes all grids of a quantizer, to the last bit as `encode` does.

    given: the roles whose range is not that of the tensor, so that `grid_range` computes it.
    has_error: the rule holds for errors, too, which both backward products read alike.
    """

    rule: Rule
    floor: float = 0.0  # the smallest step
    has_channels: bool = True  # a weight has a range per output channel
    given: frozenset[str] = frozenset()
    has_error: bool = True
    is_stochastic: bool = True  # the rounding of errors


_RULES = ("prepare", "range_of", "encode", "quantize", "encode_error", "quantize_error")


@dataclass(frozen=True)
class Quantizer(ABC):
    """Rules that round the tensors of some roles; frozen, stateless, shared by all layers.

    The roles are weight, act, error (the gradient with respect to a layer's output) and grad (the
    gradient of the weight). A rule gets the level count 2^b - 1 as a tensor, so that a change of
    bits does not recompile the model. The layer keeps running ranges and passes them as `within`.

    first_last: "float32" leaves the first and the last layer of a model float32.
    aggregation: the messages that graph layers sum along edges: "float32" (FP-Agg: only their
        linear layers are quantized) or "quantized" (Q-Agg).
    """

    roles: ClassVar[frozenset[str]]
    kinds: ClassVar[frozenset[str]] = frozenset({"integer", "float"})  # the formats it rounds to
    scales_by_product: ClassVar[bool] = False  # an operand is rounded for each matmul: see `blocks`
    observes: ClassVar[bool] = True  # act ranges come from data; layers keep running ranges
    range_momentum: ClassVar[float] = 0.1  # the weight of a new range in the running one
    min_bits: ClassVar[int] = 1

    first_last: Literal["quantized", "float32"] = field(default="quantized", kw_only=True)
    aggregation: Literal["float32", "quantized"] = field(default="float32", kw_only=True)

    def __post_init__(self) -> None:
        self._check_choice("first_last", ("quantized", "float32"))
        self._check_choice("aggregation", ("float32", "quantized"))

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        if getattr(self, name) not in choices:
            raise unknown_name(f"{type(self).__name__} {name}", getattr(self, name), choices)

    @property
    def grid_rule(self) -> GridRule | None:
        """The rule of the native library that makes the quantizer's grids; None for own code."""
        return None

    def has_rules_of(self, base: type[Quantizer]) -> bool:
        """Whether a subclass rounds as `base` does."""
        return all(getattr(type(self), name) is getattr(base, name) for name in _RULES)

    def grid_range(self, role: str, x: Tensor, levels: Tensor) -> Range:
        """The range of a role that `grid_rule` says is given."""
        return self.range_of(role, x)

    @property
    def norm_rule(self) -> str | None:
        """The rule (`bitcycle.nn.norm`) for BatchNorms; None leaves them float."""
        return None

    @property
    def has_stochastic_error(self) -> bool:
        """Whether errors are rounded stochastically."""
        return True

    def prepare(self, role: str, x: Tensor, levels: Tensor | None = None) -> Tensor:
        """Apply a differentiable function before rounding, such as tanh. levels=None: >= 2 bits."""
        return x

    @abstractmethod
    def range_of(self, role: str, x: Tensor, keep: tuple[int, ...] = ()) -> Range:
        """Return the range of the tensor. keep: the dimensions with one range per index."""

    @abstractmethod
    def encode(
        self,
        role: str,
        x: Tensor,
        levels: Tensor,
        within: Range,
        key: Tensor | None = None,
        as_codes: bool = False,
    ) -> Quantized:
        """Round the tensor to the grid of `within`.

        key: the key of the noise, for roles that are rounded stochastically. as_codes: return
        codes, for bits with an `integer_range`, instead of values.
        """

    def quantize(
        self,
        role: str,
        x: Tensor,
        levels: Tensor,
        keep: tuple[int, ...] = (),
        key: Tensor | None = None,
        as_codes: bool = False,
    ) -> tuple[Quantized, Range]:
        """Call `range_of`, then `encode` on that range, and return both results."""
        within = self.range_of(role, x, keep)
        codes: dict[str, Any] = {"as_codes": True} if as_codes else {}
        return self.encode(role, x, levels, within, key, **codes), within

    def encode_error(
        self,
        e: Tensor,
        levels: Tensor,
        within: Range,
        key: Tensor | None,
        as_codes: bool = False,
    ) -> tuple[Quantized, Quantized]:
        """Round the error (the gradient of a layer's output) for grad_input and for grad_weight.

        Both results are the same object unless the rules differ.
        """
        codes: dict[str, Any] = {"as_codes": True} if as_codes else {}
        error = self.encode("error", e, levels, within, key, **codes)
        return error, error

    def quantize_error(
        self,
        e: Tensor,
        levels: Tensor,
        key: Tensor | None,
        as_codes: bool = False,
    ) -> tuple[Quantized, Quantized, Range]:
        """Call `range_of`, then `encode_error` on that range, and return all results."""
        codes: dict[str, Any] = {"as_codes": True} if as_codes else {}
        if type(self).encode_error is Quantizer.encode_error:
            error, within = self.quantize("error", e, levels, (), key, **codes)
            return error, error, within
        within = self.range_of("error", e)
        return *self.encode_error(e, levels, within, key, **codes), within

    def grad_weight_bits(self, bits: int) -> int | None:
        """Return the error bits of grad_weight if those of grad_input are `bits`; None: float32."""
        return bits

    @property
    def weight_grids(self) -> int:
        """The number of weight grids: 2 if grad_input reads the weight on its own grid."""
        return 1

    def encode_grad(
        self, g: Tensor, levels: Tensor, key: Tensor | None, step: Tensor | None = None
    ) -> Tensor:
        """Round the weight gradient, for rules with the role grad.

        step: the optimizer step, if a scheduler sets it.
        """
        return g

    def integer_range(self, bits: int) -> tuple[int, int] | None:
        """Return the lowest and highest code; None if `encode` has no codes for these bits."""
        return None

    def bits_between_activations(self, bits: Bits) -> Bits:
        """The bits of a product of two activations, if those of the layer are `bits`."""
        return bits

    def check_kind(self, bits: Bits) -> None:
        """Raise a ValueError if the quantizer has no rule for this format."""
        kind = bits.kind
        if kind is None or kind in self.kinds:
            return
        raise ValueError(
            f"{type(self).__name__} does not round to {bits}; convert with quantizer={kind!r}"
        )


QUANTIZERS: Registry[type[Quantizer]] = Registry("quantizer", "bitcycle.quantizers")


def make_quantizer(quantizer: str | Quantizer) -> Quantizer:
    """Return a quantizer unchanged, or make the one of this name with its default settings."""
    if isinstance(quantizer, Quantizer):
        return quantizer
    if not isinstance(quantizer, str):
        raise ValueError(
            f"a quantizer is a name or an object like bc.quantizers.SBM(), got {quantizer!r}"
        )
    return QUANTIZERS[quantizer]()


def round_to_range(
    x: Tensor,
    within: Range,
    levels: Tensor,
    *,
    key: Tensor | None = None,
    as_codes: bool = False,
    has_zero: bool = False,
    floor: float = 0.0,
) -> Quantized:
    """Round to the affine grid of a range: s = (high - low) / levels, offset = low.

    key, as_codes: as in `round_to_grid`. has_zero: widen the range to include 0, and make the
    offset a whole number of steps. floor: the smallest step.

    >>> ends = torch.tensor(-1.0), torch.tensor(2.0)
    >>> round_to_range(torch.tensor([-1.0, 0.2, 7.6]), ends, torch.tensor(3)).dequantize()
    tensor([-1.,  0.,  2.])
    """
    rule = Rule.WITH_ZERO if has_zero else Rule.FROM_LOW
    made = quantize_by_rule(x, within, levels, rule, floor=floor, key=key, as_codes=as_codes)
    if made is not None:
        return made[0]
    dtype = work_dtype(x)
    low, high = (end.to(dtype) for end in within)
    levels = levels.to(dtype)
    if has_zero:
        low, high = low.clamp_max(0.0), high.clamp_min(0.0)
    scale = grid_step(low, high, levels, floor)
    offset = -torch.round(-low / scale) * scale if has_zero else low
    has_steps = high != low  # a constant is exactly its offset
    return round_to_grid(x, scale, offset, levels, key=key, as_codes=as_codes, has_steps=has_steps)


def quantize_by_rule(
    x: Tensor,
    within: Range | tuple[int, ...],
    levels: Tensor,
    rule: Rule,
    *,
    floor: float = 0.0,
    key: Tensor | None = None,
    as_codes: bool = False,
) -> tuple[Quantized, Range] | None:
    """The tensor on the grid that a rule makes of a range; None where that takes several calls.

    within: the range, or the dimensions to `keep` in the tensor's own. Returns the range, too.
    """
    dtype = torch.uint8 if as_codes else torch.float32
    grid = quantize_at_once(x, within, levels, rule, floor=floor, key=key, dtype=dtype)
    if grid is None:
        return None
    numbers, scale, offset, half, low, high = grid
    if as_codes:
        return Quantized(scale, offset, codes=numbers, half=half), (low, high)
    return Quantized(scale, offset, values=numbers), (low, high)


def round_to_grid(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    levels: Tensor,
    *,
    key: Tensor | None = None,
    as_codes: bool = False,
    has_steps: Tensor,
) -> Quantized:
    """Round to an affine grid: q = rint(clamp((x - offset) / scale, 0, levels)), x^ = q s + offset.

    key: of the noise, for stochastic rounding. as_codes: codes q instead of values x^, which have
    the dtype of `x`. has_steps: False where x^ is exactly the offset.

    >>> one = torch.tensor(1.0)
    >>> x = torch.tensor([-1.0, 0.2, 7.6])
    >>> round_to_grid(x, one / 2, one * 0, one * 3, has_steps=one > 0).dequantize()
    tensor([0.0000, 0.0000, 1.5000])
    """
    work = x.to(work_dtype(x))
    if not as_codes:
        if key is not None:
            values = round_stochastic(work, scale, offset, levels, key)
        else:
            values = round_nearest(work, scale, offset, levels)
        return Quantized(scale=scale, offset=offset, values=values.to(x.dtype))
    if key is not None:
        codes = stochastic_codes(work, scale, offset, levels, key)
    else:
        codes = nearest_codes(work, scale, offset, levels)
    return Quantized(scale * has_steps, offset, codes=codes, half=(levels + 1) * 0.5)


def work_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the grid: float32 for half-precision tensors."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def work_range(x: Tensor, keep: tuple[int, ...] = ()) -> Range:
    """`value_range` in the dtype of the grid."""
    low, high = value_range(x, keep)
    dtype = work_dtype(x)
    return (low, high) if low.dtype == dtype else (low.to(dtype), high.to(dtype))


def max_abs(low: Tensor, high: Tensor) -> Tensor:
    """max|x| of a tensor with this minimum and maximum."""
    return torch.maximum(low.abs(), high.abs())
