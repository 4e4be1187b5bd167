"""What a precision range test saw: a metric at every step, and the gain at every precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bitcycle.tables import text_table


@dataclass(frozen=True, kw_only=True)
class RangeCurve:
    """A metric over training steps at rising bits.

    gain(b) = mean(metric over the last `window` steps at b bits)
            - mean(metric over the first `window` steps at b bits)

    b passes when gain(b) > threshold. A metric that is not finite is kept as NaN, and the bits it
    appeared at do not pass: the test leaves them at that step.

    >>> curve = RangeCurve(bits=(2, 2, 3, 3), metric=(0.1, 0.1, 0.1, 0.5), window=1, threshold=0.2)
    >>> curve.steps, curve.gain(3), curve.passes(2), curve.first_passing
    ((0, 1, 2, 3), 0.4, False, 3)
    """

    bits: tuple[int, ...]
    metric: tuple[float, ...]
    window: int
    threshold: float
    name: str = "metric"

    def __post_init__(self) -> None:
        if len(self.bits) != len(self.metric):
            raise ValueError(
                f"a curve has as many bits ({len(self.bits)}) as metrics ({len(self.metric)})"
            )
        if list(self.bits) != sorted(self.bits):
            raise ValueError("the bits of a curve must not fall: a range test raises them")
        if self.window < 1:
            raise ValueError(f"window ({self.window}) must be at least 1")

    @property
    def steps(self) -> tuple[int, ...]:
        """0-based training steps of the test."""
        return tuple(range(len(self.bits)))

    @property
    def precisions(self) -> tuple[int, ...]:
        """The bits that were tried, rising."""
        return tuple(dict.fromkeys(self.bits))

    def metric_at(self, bits: int) -> tuple[float, ...]:
        """The metric of every step at these bits."""
        return tuple(m for b, m in zip(self.bits, self.metric, strict=True) if b == bits)

    def start(self, bits: int) -> float:
        """The mean over the first window at these bits; NaN once anything was not finite."""
        return self._mean(self.metric_at(bits)[: self.window], bits)

    def end(self, bits: int) -> float:
        """The mean over the last window at these bits; NaN once anything was not finite."""
        return self._mean(self.metric_at(bits)[-self.window :], bits)

    def _mean(self, values: tuple[float, ...], bits: int) -> float:
        is_whole = bool(values) and all(math.isfinite(m) for m in self.metric_at(bits))
        return math.fsum(values) / len(values) if is_whole else math.nan

    def gain(self, bits: int) -> float:
        """What training at these bits added to the metric; NaN when it diverged."""
        return self.end(bits) - self.start(bits)

    def passes(self, bits: int) -> bool:
        """Whether the model learns at these bits."""
        return self.gain(bits) > self.threshold

    @property
    def first_passing(self) -> int | None:
        """The lower bound: the fewest bits that pass."""
        return next((b for b in self.precisions if self.passes(b)), None)

    @property
    def upper_bound(self) -> int | None:
        """The fewest bits, from the lower bound on, after which more add less than the threshold.

        What the next precision adds is the rise of `end`, the mean over the last window.
        """
        low = self.first_passing
        if low is None:
            return None
        candidates = [b for b in self.precisions if b >= low]
        for bits, more in zip(candidates, candidates[1:], strict=False):
            if not self.end(more) - self.end(bits) >= self.threshold:
                return bits
        return candidates[-1]

    def window_means(self) -> tuple[float, ...]:
        """At every step the mean over the last `window` steps at the same bits, fewer at first.

        >>> RangeCurve(bits=(2, 2, 3), metric=(1.0, 2.0, 4.0), window=2, threshold=1).window_means()
        (1.0, 1.5, 4.0)
        """
        means: list[float] = []
        for bits in self.precisions:
            values = self.metric_at(bits)
            for stop in range(1, len(values) + 1):
                seen = values[max(0, stop - self.window) : stop]
                is_whole = all(math.isfinite(value) for value in seen)
                means.append(math.fsum(seen) / len(seen) if is_whole else math.nan)
        return tuple(means)

    def __str__(self) -> str:
        rows = [
            (str(bits), str(len(self.metric_at(bits))), *self._numbers(bits), self._verdict(bits))
            for bits in self.precisions
        ]
        header = ("bits", "steps", "start", "end", "gain", f"gain > {self.threshold:g}")
        return text_table(header, rows, right=(0, 1, 2, 3, 4))

    def _numbers(self, bits: int) -> tuple[str, ...]:
        digits = 2 if self.threshold >= 1 else 4
        values = ((self.start(bits), ""), (self.end(bits), ""), (self.gain(bits), "+"))
        return tuple("-" if math.isnan(v) else f"{v:{sign}.{digits}f}" for v, sign in values)

    def _verdict(self, bits: int) -> str:
        if math.isnan(self.gain(bits)):
            return "no: NaN or infinity"
        if bits == self.first_passing:
            return "yes: lower bound"
        return "yes" if self.passes(bits) else "no"

    def to_dict(self) -> dict[str, Any]:
        """JSON types only: NaN is None. Beside the measured values, what they say."""
        return {
            "name": self.name,
            "window": self.window,
            "threshold": self.threshold,
            "bits": list(self.bits),
            "steps": list(self.steps),
            "metric": [_plain(value) for value in self.metric],
            "window_means": [_plain(value) for value in self.window_means()],
            "gains": {str(bits): _plain(self.gain(bits)) for bits in self.precisions},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RangeCurve:
        """The curve that `to_dict` wrote."""
        return cls(
            bits=tuple(data["bits"]),
            metric=tuple(math.nan if value is None else value for value in data["metric"]),
            window=data["window"],
            threshold=data["threshold"],
            name=data["name"],
        )


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
