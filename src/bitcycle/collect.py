"""Statistics of quantization per layer and role, collected inside a `with` block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bitcycle.bits import Bits, PlainBits
from bitcycle.model_precision import get_precision, quantized_layers
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.nonfinite import NonFiniteCheck
from bitcycle.quantizers.base import Quantized
from bitcycle.tables import THE_MODEL, text_table

ROLE_NAMES = {
    "weight": "weight",
    "act": "activation",
    "error": "error",
    "grad": "weight gradient",
}


@dataclass(frozen=True)
class RoleStatistics:
    """The effect of quantization on the tensors of one role of one layer.

    saturation: share of elements outside the grid, by more than half a step; NaN for a format, as
    it is not measured there. sqnr_db: 10 log10(signal power / noise power); infinite without noise.
    signal_norm, noise_norm: root mean square over calls of the norms of the tensor and of its
    rounding noise.
    """

    layer: str
    role: str
    num_calls: int
    num_elements: int
    saturation: float
    sqnr_db: float
    signal_norm: float
    noise_norm: float


class _RoleSums:
    """Running sums on the tensors' device; read when the `with` block ends."""

    def __init__(self) -> None:
        self.num_calls = self.num_elements = 0
        self.sums: Tensor | None = None  # saturated elements, signal power, noise power

    def add(self, x: Tensor, quantized: Quantized, levels: Tensor, bits: PlainBits) -> None:
        wide = x.detach().double()
        noise = quantized.dequantize().double() - wide
        saturated = torch.zeros((), dtype=torch.float64, device=x.device)
        if Bits.of(bits).is_format:
            saturated = torch.full_like(saturated, math.nan)
        elif quantized.scale is not None and quantized.offset is not None:
            scale, offset = quantized.scale.double(), quantized.offset.double()
            position = (wide - offset) / scale
            saturated = ((position < -0.5) | (position > levels + 0.5)).sum().double()
        sums = torch.stack([saturated, wide.square().sum(), noise.square().sum()])
        self.sums = sums if self.sums is None else self.sums + sums
        self.num_calls += 1
        self.num_elements += x.numel()

    def read(self, layer: str, role: str) -> RoleStatistics:
        assert self.sums is not None
        saturated, signal, noise = self.sums.tolist()
        ratio = torch.tensor(signal / noise if noise else float("inf"), dtype=torch.float64)
        return RoleStatistics(
            layer=layer,
            role=role,
            num_calls=self.num_calls,
            num_elements=self.num_elements,
            saturation=saturated / max(self.num_elements, 1),
            sqnr_db=float(10 * torch.log10(ratio)),
            signal_norm=float((signal / self.num_calls) ** 0.5),
            noise_norm=float((noise / self.num_calls) ** 0.5),
        )


class LayerRecorder:
    """Adds up the statistics of every tensor that one layer rounds."""

    def __init__(self, layer: QuantizedLayer) -> None:
        self._layer = layer
        self.sums: dict[str, _RoleSums] = {}

    def record(self, role: str, x: Tensor, quantized: Quantized, levels: Tensor) -> None:
        """Add one tensor to the sums of its role."""
        if torch.compiler.is_compiling():
            raise RuntimeError("bitcycle.collect works in eager mode; call the uncompiled model")
        bits = getattr(self._layer.precision, role)
        self.sums.setdefault(role, _RoleSums()).add(x, quantized, levels, bits)


class Collection:
    """The statistics of one `with collect(model)` block; `str()` is a table, worst first."""

    def __init__(self, recorders: dict[str, LayerRecorder]) -> None:
        self._recorders = recorders

    def rows(self) -> list[RoleStatistics]:
        """Return one row per layer and quantized role, the lowest SQNR first."""
        rows = [
            sums.read(layer, role)
            for layer, recorder in self._recorders.items()
            for role, sums in sorted(recorder.sums.items())
        ]
        return sorted(rows, key=lambda row: -math.inf if math.isnan(row.sqnr_db) else row.sqnr_db)

    @property
    def verdict(self) -> str:
        """Which tensor rounding hurts most, next to the median, and what saturates most."""
        rows = self.rows()
        if not rows:
            return "nothing was quantized: set bits, and run the model inside the block"
        worst, middle = rows[0], rows[len(rows) // 2]
        text = (
            f"worst: the {ROLE_NAMES[worst.role]} of {worst.layer or THE_MODEL}, "
            f"{worst.sqnr_db:.1f} dB, {100 * _relative_noise(worst.sqnr_db):.2g} % noise "
            f"(median {middle.sqnr_db:.1f} dB)"
        )
        clipped = max(rows, key=lambda row: row.saturation if row.saturation > 0 else 0.0)
        if clipped.saturation > 0:
            text += (
                f"; most saturated: the {ROLE_NAMES[clipped.role]} of "
                f"{clipped.layer or THE_MODEL}, {100 * clipped.saturation:.2f} %"
            )
        return f"{text}\nbitcycle.sensitivity measures what that does to the loss"

    def __getitem__(self, key: tuple[str, str]) -> RoleStatistics:
        """Return the row of a (layer, role); both operands of a MatMul have the role act."""
        for row in self.rows():
            if (row.layer, row.role) == key:
                return row
        known = ", ".join(f"({row.layer!r}, {row.role!r})" for row in self.rows())
        raise KeyError(f"nothing was quantized for {key!r}; there is: {known or 'nothing'}")

    def gradient_noise(self) -> dict[str, float]:
        """Return the norms over all layers of the errors and of their rounding noise.

        Errors are the gradients with respect to layer outputs. An adaptive schedule reads the keys.
        Both values are 0 if no error was quantized.
        """
        rows = [row for row in self.rows() if row.role == "error"]
        gradient = math.hypot(*(row.signal_norm for row in rows))
        return {"gradient_norm": gradient,
                "noise_norm": math.hypot(*(row.noise_norm for row in rows))}  # fmt: skip

    def __str__(self) -> str:
        header = ("layer", "role", "calls", "saturated", "SQNR dB", "norm", "noise norm")
        body = [
            (
                row.layer, row.role, str(row.num_calls),
                "-" if math.isnan(row.saturation) else f"{100 * row.saturation:.2f}%",
                f"{row.sqnr_db:.1f}", f"{row.signal_norm:.3g}", f"{row.noise_norm:.3g}",
            )
            for row in self.rows()
        ]  # fmt: skip
        return f"{text_table(header, body, right=range(2, 7))}\n\n{self.verdict}"


def _relative_noise(sqnr_db: float) -> float:
    """The norm of the noise, divided by the norm of the signal."""
    return float(10 ** (-sqnr_db / 20))


@contextmanager
def collect(model: nn.Module) -> Iterator[Collection]:
    """Collect statistics of quantization per layer and role inside a `with` block.

    They are the number of calls, saturation, SQNR (signal-to-quantization-noise ratio) and norms.
    Saturation is not measured for formats (NaN, shown as -). Compiled layers run uncompiled inside
    the block. A NaN or infinity in an operand raises an error when the block ends.

    >>> from bitcycle import quantize_model, set_precision
    >>> model = quantize_model(nn.Linear(4, 2))
    >>> set_precision(model, "w8a8e8")
    >>> with collect(model) as statistics:
    ...     model(torch.randn(8, 4)).sum().backward()
    >>> statistics["", "act"].num_calls
    1
    """
    layers = {entry.name: layer for entry, layer in quantized_layers(model)}
    if any(layer.recorder is not None for layer in layers.values()):
        raise RuntimeError("collect(model) is active already; leave the outer `with` first")
    recorders = {name: LayerRecorder(layer) for name, layer in layers.items()}
    health = NonFiniteCheck(list(layers), list(layers.values()))
    health.clear()
    for name, layer in layers.items():
        layer.recorder = recorders[name]
    try:
        yield Collection(recorders)
    finally:
        for layer in layers.values():
            layer.recorder = None
    step = max(layer.shared.step for layer in layers.values())
    health.check(step, get_precision(model), can_wait=True)
