"""Which layers suffer from few bits: lower one layer at a time and compare loss and gradient.

`collect` measures the noise of rounding in each tensor. `sensitivity` measures what that noise does
to the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.files import to_plain
from bitcycle.model_precision import LayerBits, quantized_layers
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.nonfinite import NonFiniteError
from bitcycle.patterns import Pattern
from bitcycle.precision import Precision
from bitcycle.schedules import ScheduleLike
from bitcycle.snapshot import Snapshot
from bitcycle.tables import THE_MODEL, text_table

OUTLIER = 2.0  # times the median layer's change of the gradient: more is sensitive


@dataclass(frozen=True, kw_only=True)
class LayerSensitivity:
    """What one layer at few bits does to the loss and to the gradient, the others in float32.

    loss_change: loss minus the loss of the float32 model. gradient_change: norm of the difference
    of the gradient, divided by the norm of the float32 model's gradient. Both are NaN or infinite
    if the loss is.
    """

    name: str
    type: str
    loss_change: float
    gradient_change: float


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The layers of a model, most sensitive first; `str()` is a table with a verdict.

    together: all layers lowered at once.
    """

    bits: str
    rows: tuple[LayerSensitivity, ...]
    together: LayerSensitivity
    loss: float  # of the float32 model
    num_batches: int

    def __getitem__(self, name: str) -> LayerSensitivity:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no layer {name!r}; layers: {', '.join(row.name for row in self.rows)}")

    @property
    def median(self) -> float:
        """The change of the gradient by the median layer."""
        return median(_order(row)[0] for row in self.rows)

    @property
    def sensitive(self) -> tuple[str, ...]:
        """The layers that change the gradient more than twice as much as the median layer.

        A layer that makes the loss or the gradient NaN or infinite is among them.
        """
        limit = OUTLIER * self.median
        changes = {row.name: _order(row)[0] for row in self.rows}
        return tuple(n for n, change in changes.items() if change > limit or change == math.inf)

    def patterns(
        self, others: ScheduleLike, sensitive: ScheduleLike = 8, *, count: int | None = None
    ) -> dict[Pattern, ScheduleLike]:
        """Return layer patterns for a `PrecisionScheduler`: one schedule for the sensitive layers.

        others: the schedule of all other layers. count: how many of the most sensitive layers to
        take; by default those that change the gradient more than twice as much as the median layer.

            bc.PrecisionScheduler(model, forward=found.patterns("CR:4-8:8"), total_steps=...)
        """
        names = self.sensitive
        if count is not None:
            if not 0 <= count <= len(self.rows):
                raise ValueError(f"count ({count}) must be from 0 to {len(self.rows)}, the layers")
            names = tuple(row.name for row in self.rows[:count])
        if len(names) == len(self.rows):
            return dict.fromkeys(names, sensitive)
        patterns: dict[Pattern, ScheduleLike] = {"*": others}
        # a name also selects the layers below it, and the last match wins: the deeper ones follow
        for row in sorted(self.rows, key=lambda row: row.name.count(".")):
            is_below = any(row.name.startswith(f"{name}.") for name in names)
            if row.name in names or is_below:
                patterns[row.name] = sensitive if row.name in names else others
        return patterns

    def __str__(self) -> str:
        header = ("layer", "type", "change of the loss", "change of the gradient")
        body = [_cells(row) for row in (*self.rows, self.together)]
        table = text_table(header, body, right=(2, 3))
        return f"{table}\n\n{self.verdict}"

    @property
    def verdict(self) -> str:
        """The outcome in a sentence or two."""
        worst, names = self.rows[0], self.sensitive
        if not names:
            return (
                f"no layer stands out at {self.bits}: {worst.name or THE_MODEL} changes the "
                f"gradient most, by {_percent(worst.gradient_change)} (median "
                f"{_percent(self.median)})"
            )
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return (
            f"most sensitive at {self.bits}: {worst.name or THE_MODEL} changes the gradient by "
            f"{_percent(worst.gradient_change)}, the median layer by {_percent(self.median)}\n"
            f"{names[0] or THE_MODEL}{more}: more than twice the median"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of JSON types; NaN is the text nan."""
        return dict(to_plain({**asdict(self), "sensitive": list(self.sensitive)}))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sensitivity:
        """Return the result that `to_dict` describes."""

        def row(given: Mapping[str, Any]) -> LayerSensitivity:
            changes = {key: float(given[key]) for key in ("loss_change", "gradient_change")}
            return LayerSensitivity(name=given["name"], type=given["type"], **changes)

        return cls(
            bits=data["bits"],
            rows=tuple(map(row, data["rows"])),
            together=row(data["together"]),
            loss=float(data["loss"]),
            num_batches=data["num_batches"],
        )


def sensitivity(
    model: nn.Module,
    batches: Iterable[Any],
    loss_fn: Callable[[nn.Module, Any], Tensor],
    *,
    bits: LayerBits = 4,
    progress: Callable[[str], object] | None = None,
) -> Sensitivity:
    """Lower one converted layer at a time to `bits`, and rank layers by what that changes.

    L is the mean of `loss_fn(model, batch)` over the batches and g its gradient with respect to all
    parameters that take one. L_0 and g_0 are those of the model with every layer in float32, L_i
    and g_i those with layer i at `bits` and all others in float32:

        loss_change(i)     = L_i - L_0
        gradient_change(i) = |g_i - g_0| / |g_0|        Euclidean norms

    Layers are sorted by gradient_change, the largest first.

    Every pass starts from the same state, so dropout draws the same numbers. Each module keeps its
    mode: in training mode the activation range is the batch's. Afterwards everything is as it was:
    parameters, gradients, buffers, ranges, bits, modes and random generators, also after an error.
    It takes number of layers + 2 passes over the batches, forward and backward.

    batches: a few batches of training data; all are kept in memory.
    loss_fn: returns the loss of the model on one batch, a scalar tensor.
    bits: of weights and activations; or a precision such as "w4a4e8" or "nvfp4" for the layer.
    progress: called with a line of text after every layer.

    >>> from bitcycle.convert import quantize_model
    >>> _ = torch.manual_seed(0)
    >>> model = quantize_model(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> x, y = torch.randn(32, 4), torch.randint(2, (32,))
    >>> found = sensitivity(
    ...     model, [(x, y)], lambda model, b: nn.functional.cross_entropy(model(b[0]), b[1]), bits=3
    ... )
    >>> sorted(row.name for row in found.rows), found.num_batches
    (['0', '2'], 1)
    """
    batches = list(batches)
    if not batches:
        raise ValueError("sensitivity got no batch; give at least one")
    layers = quantized_layers(model)
    lowered = _precision(bits)
    for _, layer in layers:
        layer.check_precision(lowered)
    start = Snapshot(model)

    def measure(names: Sequence[str]) -> tuple[float, list[Tensor]]:
        start.restore()
        for entry, layer in layers:
            layer.set_precision(lowered if entry.name in names else Precision())
        return _loss_and_gradient(model, batches, loss_fn)

    try:
        loss, gradient = measure([])
        norm = _norm(gradient)
        if not (math.isfinite(loss) and math.isfinite(norm) and norm > 0):
            raise NonFiniteError(
                f"the loss of the float32 model is {loss:g} and its gradient has norm {norm:g}: "
                "there is nothing to compare with"
            )

        def row(name: str, kind: str, names: Sequence[str]) -> LayerSensitivity:
            own_loss, own = measure(names)
            change = _norm([a - b for a, b in zip(own, gradient, strict=True)]) / norm
            found = LayerSensitivity(
                name=name, type=kind, loss_change=own_loss - loss, gradient_change=change
            )
            if progress:
                progress(f"sensitivity  {'  '.join(filter(None, _cells(found)))}")
            return found

        rows = [row(e.name, _type_name(layer), [e.name]) for e, layer in layers]
        together = row("all layers together", "", [entry.name for entry, _ in layers])
    finally:
        start.restore()
    return Sensitivity(
        bits=f"{bits} bits" if isinstance(bits, int) else str(lowered),
        rows=tuple(sorted(rows, key=_order, reverse=True)),
        together=together,
        loss=loss,
        num_batches=len(batches),
    )


def _precision(bits: LayerBits) -> Precision:
    """A number or a format lowers weights and activations; a text says what it lowers."""
    if isinstance(bits, Precision | str):
        return Precision.parse(bits)
    return Precision(weight=bits, act=bits)


def _loss_and_gradient(
    model: nn.Module, batches: Sequence[Any], loss_fn: Callable[[nn.Module, Any], Tensor]
) -> tuple[float, list[Tensor]]:
    """The mean loss over the batches and its gradient, with zeros where there is none."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = 0.0
    gradient = [torch.zeros_like(parameter) for parameter in parameters]
    for batch in batches:
        with torch.enable_grad():
            loss = loss_fn(model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.grad_fn is None:
            raise TypeError(
                f"loss_fn(model, batch) must return the loss as a scalar tensor with a gradient, "
                f"got {loss!r:.80}"
            )
        total += loss.item() / len(batches)
        # not backward(): hooks of parameters (DDP, optimizers) and .grad stay out of it
        parts = torch.autograd.grad(loss.reshape(()), parameters, allow_unused=True)
        for own, part in zip(gradient, parts, strict=True):
            if part is not None:
                own.add_(part.to_dense() if part.is_sparse else part, alpha=1 / len(batches))
    return total, gradient


def _norm(gradient: Iterable[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(part.double())) for part in gradient))


def _type_name(layer: QuantizedLayer) -> str:
    return layer.float_type.__name__


def _order(row: LayerSensitivity) -> tuple[float, float]:
    """What to sort by: a loss or gradient that is not finite is the worst."""
    changes = (row.gradient_change, abs(row.loss_change))
    return changes if all(map(math.isfinite, changes)) else (math.inf, math.inf)


def _cells(row: LayerSensitivity) -> tuple[str, ...]:
    change = f"{row.loss_change:+.4f}" if math.isfinite(row.loss_change) else "NaN or infinity"
    return row.name or THE_MODEL, row.type, change, _percent(row.gradient_change)


def _percent(change: float) -> str:
    return f"{100 * change:.1f} %" if math.isfinite(change) else "NaN or infinity"
