"""What recipes share: methods as schedule texts, and the precision part of a configuration."""

from __future__ import annotations

from bitcycle.recipes.tables import Bits
from bitcycle.schedules.cycle import Cycle
from bitcycle.train.config import PrecisionConfig

TEN = tuple(sorted(Cycle.named()))  # LR, CR, ..., RT-V
CPT_CYCLES = 32
ENDS = ("conv1", "fc")  # the first and the last layer of the residual nets
SKIPPED = {  # by quantizer: the layers that stay float32; the last one always does
    "absmax": ("fc",),
    "dorefa": ENDS,
    "pow2": ("fc",),
    "sbm": ("fc",),
    "sbm_full": ("fc",),
    "wageubn": ENDS,
}
FEW_CYCLES = 8  # the follow-up's number, and that of short runs


def schedule_text(method: str, bits: Bits, cycles: int = CPT_CYCLES) -> int | str:
    """The forward schedule of a method; a range of one number is static.

    >>> schedule_text("cpt", Bits(3, 8, 8)), schedule_text("static", Bits(6, 6, 8))
    ('CR:3-8:32', 6)
    >>> schedule_text("progressive", Bits(3, 8, 8)), schedule_text("ET-H", Bits(3, 8, 8), 8)
    ('ramp:3-8@0.5', 'ET-H:3-8:8')
    """
    if bits.low == bits.high:
        return bits.high
    if method == "progressive":
        return f"ramp:{bits.low}-{bits.high}@0.5"
    name = "CR" if method == "cpt" else method
    return f"{name}:{bits.low}-{bits.high}:{cycles}"


def quantized(
    forward: int | str, backward: int | str, *, skip: tuple[str, ...] = (), quantizer: str = "sbm"
) -> PrecisionConfig:
    """Bits for every layer but `skip`; the kernel is pinned, so that machines agree."""
    return PrecisionConfig(
        quantizer=quantizer, skip=skip, kernel="simulate", forward=forward, backward=backward
    )
