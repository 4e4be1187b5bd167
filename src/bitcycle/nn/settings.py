"""How a layer was converted (`LayerSettings`), what the layers of a model share (`ModelState`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from bitcycle.kernels.base import Kernel
from bitcycle.kernels.choice import MAX_CODE_BITS
from bitcycle.kernels.geometry import Geometry
from bitcycle.nn.input_cache import InputCache
from bitcycle.precision import Precision
from bitcycle.quantizers.base import Quantizer


@dataclass(frozen=True)
class LayerSettings:
    """How a layer was converted; the same until it is converted again."""

    name: str
    quantizer: Quantizer
    kernel: Kernel
    kernel_reason: str
    max_bits: int | None  # the user's limit; None: no limit
    seed: int = 0  # of the stochastic rounding

    @property
    def is_asked_for(self) -> bool:
        """Whether the user chose the kernel."""
        return self.kernel_reason.startswith("asked for")

    @property
    def is_limited(self) -> bool:
        """Whether `check` refuses some bits."""
        return self.max_bits is not None or (self.is_asked_for and self.kernel.takes_codes)

    def check(self, precision: Precision) -> None:
        """Raise a ValueError if the layer cannot take these bits; skips roles without a rule."""
        rounded = [bits for role, bits in precision.bits.items() if role in self.quantizer.roles]
        for bits in rounded:
            try:
                self.quantizer.check_kind(bits)
            except ValueError as error:
                message = f"layer {self.name!r} cannot take {precision}: {error}"
                raise ValueError(message) from None
        on_grids = [bits.grid_bits for bits in rounded if bits.kind == "integer"]
        top = max(on_grids, default=0)
        if self.is_asked_for and self.kernel.takes_codes and top > MAX_CODE_BITS:
            raise ValueError(
                f"layer {self.name!r} cannot take {precision}: kernel {self.kernel.name!r} carries "
                f"at most {MAX_CODE_BITS} bits"
            )
        if on_grids and min(on_grids) < self.quantizer.min_bits:
            raise ValueError(
                f"layer {self.name!r} cannot take {precision}: {type(self.quantizer).__name__} "
                f"needs at least {self.quantizer.min_bits} bits"
            )
        if self.max_bits is not None and top > self.max_bits:
            raise ValueError(
                f"layer {self.name!r} was converted with max_bits={self.max_bits} and cannot take "
                f"{precision}"
            )


@dataclass
class ModelState:
    """What the layers of one model share; a copy of the model has its own."""

    step: int = 0  # the optimizer step, set by the scheduler; the noise depends on it
    has_warned_unobserved: bool = False
    is_calibrating: bool = False  # while `calibrate` runs, which observes in any mode, at any bits
    takes_mean: bool = False  # then: ranges are means over all observations, not running averages
    input_cache: InputCache = field(default_factory=InputCache, compare=False, repr=False)
    layers_with_bits: frozenset[str] = frozenset()  # by name

    @property
    def has_bits(self) -> bool:
        """Whether any layer has bits now."""
        return bool(self.layers_with_bits)

    def note_bits(self, name: str, has_bits: bool) -> None:
        """Record whether the layer of this name has bits."""
        others = self.layers_with_bits - {name}
        self.layers_with_bits = others | {name} if has_bits else others


def notes_on(settings: LayerSettings, geometry: Geometry, device_type: str) -> list[str]:
    """What a kernel that was asked for does not multiply as integers."""
    kernel, has_codes = settings.kernel, settings.quantizer.integer_range(MAX_CODE_BITS) is not None
    if not (settings.is_asked_for and has_codes) or kernel.reason_against_device(device_type):
        return []
    return kernel.notes_on(geometry)


def float_products(kernel: Kernel, quantizer: Quantizer) -> list[str]:
    """The products that this quantizer's grids leave to float32, and why."""
    if kernel.name != "native":
        return []
    rules = without_sync(quantizer)
    if rules.range_of("error", torch.zeros(2, 2))[0].numel() > 1:
        return ["grad_weight of a convolution in float32: one scale per sample"]
    if rules.grad_weight_bits(MAX_CODE_BITS) != MAX_CODE_BITS:
        return ["grad_weight in float32: it reads a separate error"]
    return []


def without_sync(quantizer: Quantizer) -> Quantizer:
    """The same quantizer with ranges of this process only."""
    if not getattr(quantizer, "sync_ranges", False):
        return quantizer
    return replace(quantizer, sync_ranges=False)  # type: ignore[call-arg]
