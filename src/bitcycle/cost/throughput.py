"""Published throughput of number formats relative to bf16: the second measure of a run's cost.

BitOPs price a product by the bits of its elements. A GPU multiplies some formats only, each at a
rate of its own, and the rates of NVIDIA Blackwell are published (arXiv 2509.25149). They bound what
such a GPU can gain in matrix products. bitcycle measures none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bitcycle.cost.conventions import LayerCost
from bitcycle.formats.catalogue import Format

CONVENTION = "published throughput, bf16 = 1: NVIDIA Blackwell, not measured here"
DEVICES = ("GB200", "GB300")
# name of the format -> rate on each device
_RATES = {
    **dict.fromkeys(("bf16", "fp16"), (1, 1)),
    **dict.fromkeys(("fp8", "e5m2", "mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2"), (2, 2)),
    **dict.fromkeys(("mxfp4", "nvfp4"), (4, 6)),
}


def published_rate(first: int | Format, second: int | Format, device: str) -> int | None:
    """The rate of a product relative to bf16; None where no rate is published.

    A product of two formats has the rate of the slower one. Integers, float32 and mxint8 have none.

    >>> from bitcycle.formats.catalogue import FORMATS
    >>> nvfp4, mxfp8 = FORMATS["nvfp4"], FORMATS["mxfp8"]
    >>> published_rate(nvfp4, nvfp4, "GB300"), published_rate(nvfp4, mxfp8, "GB300")
    (6, 2)
    >>> published_rate(nvfp4, 8, "GB300")
    """
    rates = [_RATES.get(str(each)) for each in (first, second)]
    place = DEVICES.index(device)
    found = [rate[place] for rate in rates if rate is not None]
    return min(found) if len(found) == 2 else None


@dataclass(frozen=True)
class Throughput:
    """How much faster than in bf16 the products of a run are, by published rates.

    speedup: by device, over the products with a published rate. counted: their share of all MACs.
    """

    speedup: Mapping[str, float]
    counted: float

    @classmethod
    def of(cls, layers: Iterable[LayerCost], matmul: str | None = None) -> Throughput | None:
        """The throughput of layers, or of one of their matmuls; None without a published rate.

        speedup = sum of MACs / sum of MACs / rate
        """
        total = counted = 0
        times = dict.fromkeys(DEVICES, 0.0)
        for layer in layers:
            for (name, first, second), macs in layer.macs.items():
                if matmul not in (None, name):
                    continue
                total += macs
                rates = {device: published_rate(first, second, device) for device in DEVICES}
                for device, rate in rates.items():
                    times[device] += macs / rate if rate else 0
                counted += macs if all(rates.values()) else 0
        if not counted:
            return None
        return cls({device: counted / time for device, time in times.items()}, counted / total)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types."""
        return {
            "convention": CONVENTION,
            "speedup": dict(self.speedup),
            "counted_share_of_macs": self.counted,
        }


def speedup_cells(throughput: Throughput | None) -> tuple[str, ...]:
    """A cell for each of `DEVICES`.

    >>> speedup_cells(Throughput({"GB200": 3.2, "GB300": 4.0}, 1.0)), speedup_cells(None)
    (('3.20', '4.00'), ('-', '-'))
    """
    if throughput is None:
        return ("-",) * len(DEVICES)
    return tuple(f"{throughput.speedup[device]:.2f}" for device in DEVICES)


def legend(throughput: Throughput | None) -> list[str]:
    """The lines below a table with these columns."""
    lines = [f"{', '.join(DEVICES)}: {CONVENTION};"]
    if throughput is None:
        return [*lines, "  no product of this run has a published ratio"]
    if throughput.counted == 1:
        return [*lines, "  every product is counted"]
    left = 1 - throughput.counted
    return [
        *lines,
        f"  without {left:.1%} of the MACs, in float32, integers or mxint8: no published ratio",
    ]
