"""How a layer was converted, and what the layers of one model share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bitcycle.kernels.base import Kernel
from bitcycle.kernels.choice import MAX_CODE_BITS
from bitcycle.nn.seen import LastSeen
from bitcycle.precision import Precision
from bitcycle.quantizers.base import Quantizer


@dataclass
class ModelState:
    """What the layers of one model share. Copied with the model, never between models."""

    step: int = 0  # optimizer step, written by the scheduler: part of the noise
    has_warned_unobserved: bool = False
    is_calibrating: bool = False  # while `calibrate` runs: observe, whatever the mode and the bits
    takes_mean: bool = False  # then: the mean over all observations, not a running average
    last_seen: LastSeen = field(default_factory=LastSeen, compare=False, repr=False)
    layers_with_bits: frozenset[str] = frozenset()  # by name

    @property
    def has_bits(self) -> bool:
        """Whether any layer has bits now: what companions go by."""
        return bool(self.layers_with_bits)

    def note_bits(self, name: str, has_bits: bool) -> None:
        """The layer of this name has bits, or has none any more."""
        others = self.layers_with_bits - {name}
        self.layers_with_bits = others | {name} if has_bits else others


@dataclass(frozen=True)
class LayerSettings:
    """How a layer was converted: fixed until it is converted again."""

    name: str
    quantizer: Quantizer
    kernel: Kernel
    kernel_reason: str
    max_bits: int | None  # as given by the user; None: no limit
    seed: int = 0  # of the stochastic rounding

    @property
    def is_asked_for(self) -> bool:
        """Whether the user fixed the kernel."""
        return self.kernel_reason.startswith("asked for")

    @property
    def is_limited(self) -> bool:
        """Whether there are bits that `check` refuses."""
        return self.max_bits is not None or (self.is_asked_for and self.kernel.takes_codes)

    def check(self, precision: Precision) -> None:
        """Raise if these bits exceed `max_bits`; roles without a rule take no bits."""
        roles = {r: bits for r, bits in precision.items() if r in self.quantizer.roles}
        top = Precision(**roles).top or 0
        if self.is_asked_for and self.kernel.takes_codes and top > MAX_CODE_BITS:
            raise ValueError(
                f"kernel {self.kernel.name!r} carries at most {MAX_CODE_BITS} bits and layer "
                f"{self.name!r} cannot take {precision}; convert with kernel='auto' or 'simulate'"
            )
        lowest = min((bits for bits in roles.values() if bits is not None), default=32)
        if lowest < self.quantizer.min_bits:
            raise ValueError(
                f"layer {self.name!r} cannot take {precision}: {type(self.quantizer).__name__} "
                f"needs at least {self.quantizer.min_bits} bits"
            )
        if self.max_bits is not None and top > self.max_bits:
            raise ValueError(
                f"layer {self.name!r} was converted with max_bits={self.max_bits} and cannot take "
                f"{precision}; convert with a larger max_bits, or lower the bits"
            )


def alone(quantizer: Quantizer) -> Quantizer:
    """The same rules without a word to other processes."""
    if not getattr(quantizer, "sync_ranges", False):
        return quantizer
    return replace(quantizer, sync_ranges=False)  # type: ignore[call-arg]
