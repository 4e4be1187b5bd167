"""`fp8`, `mx` and `nvfp4`: floats with a scale per tensor, row or block of the summed axis.

    output       blocks along the input channels
    grad_input   blocks along the output channels
    grad_weight  blocks along the tokens of a linear layer, the pixels of a convolution's maps

Scales lie along the axis that a matmul sums over, so an operand is rounded for each of the two
matmuls that read it, both times from the unrounded tensor. `formats.rounding` has the rules. Each
quantizer also takes bf16 and fp16, and integers on `sbm`'s grid with one range per tensor.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from bitcycle.bits import Bits
from bitcycle.formats.rounding import round_blocks
from bitcycle.formats.scaled import Scaled, encode_scaled
from bitcycle.native.encode import count_modes
from bitcycle.ops.noise import hash_ints
from bitcycle.quantizers.base import (
    QUANTIZERS,
    OperandView,
    Quantized,
    Quantizer,
    Range,
    round_to_range,
    work_range,
)

HADAMARD_SIZE = 16
FP8_BLOCK = 128
BF16 = Bits.of("bf16")
Blocks = tuple[tuple[int, ...], tuple[int, ...], tuple[int | None, ...]]


@dataclass(frozen=True, kw_only=True)
class BlockQuantizer(Quantizer):
    """The base class: one scale per block, found anew in every matmul.

    error_rounding: "nearest" or "stochastic".
    """

    error_rounding: Literal["nearest", "stochastic"] = "nearest"

    roles: ClassVar[frozenset[str]] = frozenset({"weight", "act", "error"})
    kind: ClassVar[Literal["fp8", "mx", "nvfp4"]]
    scales_by_product: ClassVar[bool] = True
    observes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("error_rounding", ("nearest", "stochastic"))

    @property
    def has_stochastic_error(self) -> bool:
        """Whether errors are rounded stochastically."""
        return self.error_rounding == "stochastic"

    def range_of(self, role: str, x: Tensor, keep: tuple[int, ...] = ()) -> Range:
        """The extremes of the tensor; integers have one range per tensor, or per node."""
        return work_range(x, keep if role == "act" else ())

    def encode(
        self,
        role: str,
        x: Tensor,
        levels: Tensor,
        within: Range,
        key: Tensor | None = None,
        as_codes: bool = False,
    ) -> Quantized:
        """Round to the grid of integers of a range."""
        key = key if role == "error" and self.has_stochastic_error else None
        return round_to_range(x, within, levels, key=key, as_codes=as_codes)

    def round_in_blocks(
        self,
        x: Tensor,
        numbers: Tensor,
        view: OperandView,
        key: Tensor | None = None,
        signs: Tensor | None = None,
        flag: Tensor | None = None,
    ) -> Tensor:
        """Round to the quantizer's own format; numbers: of its elements (`Format.numbers`).

        signs: transform the summed axis first (`hadamard_signs`), which may make it longer. flag:
        a float32 number that turns NaN if an element is not finite.
        """
        shape, dims, blocks = self._blocks(view)
        rounded = round_blocks(
            x.reshape(shape),
            numbers,
            kind=self.kind,
            dims=dims,
            blocks=blocks,
            scale=self._scale,
            key=key,
            signs=signs,
            flag=flag,
        )
        return rounded if signs is not None else rounded.reshape(x.shape)

    def round_for_tensor_cores(
        self,
        x: Tensor,
        numbers: Tensor,
        view: OperandView,
        stored_as: str,
        key: Tensor | None = None,
        signs: Tensor | None = None,
        flag: Tensor | None = None,
    ) -> Scaled:
        """The same rounding of an operand of a linear layer, as a matrix for tensor cores."""
        shape, dims, blocks = self._blocks(view)
        is_last = view.dim == len(shape) - 1
        return encode_scaled(
            x.reshape(shape),
            numbers,
            recipe=self.recipe,
            stored_as=stored_as,
            dim=1 if is_last else 0,
            dims=dims if len(dims) != 1 else (1 if is_last else 0,),
            blocks=blocks,
            scale=self._scale,
            key=key,
            signs=signs,
            flag=flag,
        )

    @property
    def recipe(self) -> str:
        """The layout of the quantizer's own format on tensor cores (`formats.scaled`)."""
        return self.kind

    @abstractmethod
    def _blocks(self, view: OperandView) -> Blocks:
        """The shape, the dimensions and the sizes of blocks."""

    @property
    def _scale(self) -> Literal["floor", "rceil"]:
        return "floor"

    def hadamard_signs(self, device: torch.device) -> Tensor | None:
        """The signs of the transform of grad_weight's tokens; None for no transform."""
        return None


@QUANTIZERS.register("fp8")
@dataclass(frozen=True, kw_only=True)
class FP8(BlockQuantizer):
    """8-bit floats, e4m3 (`fp8`) or e5m2, scaled so that the largest value just fits.

    granularity: "tensor" (one scale), "row" (one per vector along the summed axis) or "block"
        (1 x 128 along the summed axis, 128 x 128 for weights, as DeepSeek-V3).
    """

    granularity: Literal["tensor", "row", "block"] = "tensor"

    kind: ClassVar[Literal["fp8", "mx", "nvfp4"]] = "fp8"
    kinds: ClassVar[frozenset[str]] = frozenset({"integer", "float", "fp8"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("granularity", ("tensor", "row", "block"))

    @property
    def recipe(self) -> str:
        """fp8_tensor, fp8_row or fp8_block."""
        return f"{self.kind}_{self.granularity}"

    def _blocks(self, view: OperandView) -> Blocks:
        if self.granularity == "tensor":
            return view.shape, (), ()
        size = None if self.granularity == "row" else FP8_BLOCK
        return view.blocks(size, has_tiles=self.granularity == "block")


@QUANTIZERS.register("mx")
@dataclass(frozen=True, kw_only=True)
class MX(BlockQuantizer):
    """The OCP microscaling formats: a power of two per 32 values along the summed axis.

    scale: "floor" (2^(floor(log2 max|x|) - emax), as published; clips mantissas above the largest
        element) or "rceil" (rounded up: nothing clips).
    """

    scale: Literal["floor", "rceil"] = "floor"

    kind: ClassVar[Literal["fp8", "mx", "nvfp4"]] = "mx"
    kinds: ClassVar[frozenset[str]] = frozenset({"integer", "float", "mx"})
    block: ClassVar[int] = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("scale", ("floor", "rceil"))

    def _blocks(self, view: OperandView) -> Blocks:
        return view.blocks(self.block)

    @property
    def _scale(self) -> Literal["floor", "rceil"]:
        return self.scale


@QUANTIZERS.register("nvfp4")
@dataclass(frozen=True, kw_only=True)
class NVFP4(BlockQuantizer):
    """4-bit floats with an e4m3 scale per 16 values, by the recipe that pretrains with them.

    error_rounding: "stochastic" (as published) or "nearest".
    weight_tiles: weights have one scale per 16 x 16 values, so that forward and backward see the
        same weight; False: per 16 along the summed axis.
    hadamard: transform the tokens of grad_weight by a random Hadamard matrix of size 16.
    hadamard_seed: of its signs.
    attention: "bf16" leaves products of two activations in bf16; "nvfp4" rounds those too.
    """

    error_rounding: Literal["nearest", "stochastic"] = "stochastic"
    weight_tiles: bool = True
    hadamard: bool = True
    hadamard_seed: int = 0
    attention: Literal["bf16", "nvfp4"] = "bf16"

    kind: ClassVar[Literal["fp8", "mx", "nvfp4"]] = "nvfp4"
    kinds: ClassVar[frozenset[str]] = frozenset({"integer", "float", "nvfp4"})
    block: ClassVar[int] = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("attention", ("bf16", "nvfp4"))
        numbers = range(HADAMARD_SIZE)
        signs = [1.0 if hash_ints(self.hadamard_seed, each) >= 0 else -1.0 for each in numbers]
        object.__setattr__(self, "_signs", signs)  # no field: it follows from the seed

    def _blocks(self, view: OperandView) -> Blocks:
        return view.blocks(self.block, has_tiles=self.weight_tiles)

    def hadamard_signs(self, device: torch.device) -> Tensor | None:
        """The signs of `hadamard_seed`."""
        if not self.hadamard:
            return None
        signs: list[float] = vars(self)["_signs"]
        if device.type == "cpu":
            return torch.tensor(signs)
        if device.type == "cuda" and not _is_recorded():
            return _signs_on(tuple(signs), device)
        # computed on the device: a list would be uploaded, and the host would wait for it
        mask = sum(1 << i for i, sign in enumerate(signs) if sign < 0)
        places = torch.arange(HADAMARD_SIZE, dtype=torch.int32, device=device)
        return 1.0 - 2.0 * ((mask >> places) & 1)

    def bits_between_activations(self, bits: Bits) -> Bits:
        """bf16 for nvfp4, unless `attention` says otherwise."""
        return BF16 if self.attention == "bf16" and bits.kind == "nvfp4" else bits


def _is_recorded() -> bool:
    """Whether a tensor made now belongs to a graph, or to a mode such as that of fake tensors."""
    if torch.compiler.is_compiling() or count_modes():
        return True
    return torch.cuda.is_current_stream_capturing()


@functools.cache
def _signs_on(signs: tuple[float, ...], device: torch.device) -> Tensor:
    """Signs on a GPU, where they are uploaded once."""
    return torch.tensor(signs, device=device)
