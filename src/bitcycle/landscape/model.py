"""`loss_landscape`: the loss landscape of any model and loss function, in this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from torch import nn

from bitcycle.landscape.points import PointFile
from bitcycle.landscape.result import Grid, Landscape, Point
from bitcycle.landscape.surface import (
    LossFunction,
    Ranges,
    bits_to_plain,
    moving_parameters,
    shapes_digest,
    surface_of,
)
from bitcycle.model_precision import Assignment, at_precision, get_precision, quantized_layers
from bitcycle.precision import Precision
from bitcycle.train.evaluate import describe_precision, is_converted
from bitcycle.train.result import weights_digest


def loss_landscape(
    model: nn.Module,
    loss_fn: LossFunction,
    *,
    grid: int = 51,
    extent: float = 1.0,
    seed: int = 0,
    precision: Assignment | None = None,
    ranges: Ranges = "batch",
    label: str = "model",
    num_samples: int | None = None,
    partial: str | Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Landscape:
    """Evaluate the loss on a grid of `grid` x `grid` points around the model's weights.

    `loss_fn(model)` returns the mean loss over fixed data. It is called in evaluation mode, without
    gradients, at `precision` (None: the model's current bits). Afterwards, also after an exception,
    the model is exactly what it was.

    partial: a file that keeps every point as it comes and is removed at the end. After an
    interruption, the same call computes the rest; the weights and all settings but the loss
    function must be the same. num_samples, label: for tables and pictures.

    >>> import torch
    >>> def distance(model):  # from weights of 0: a bowl
    ...     return model.weight.square().sum()
    >>> layer = nn.Linear(3, 2)
    >>> found = loss_landscape(layer, distance, grid=3)
    >>> found.alphas, found.center == distance(layer).item()
    ((-1.0, 0.0, 1.0), True)
    """
    points = Grid(num=grid, extent=extent)
    bits = _resolve_bits(model, precision)
    origin = {
        "weights": weights_digest(model),
        "shapes": shapes_digest(moving_parameters(model).items()),
        "bits": bits_to_plain(bits),
        "ranges": ranges,
        "seed": seed,
        "grid": grid,
        "extent": extent,
    }
    known: dict[Point, float] = {}
    store = None if partial is None else PointFile(Path(partial), origin)
    with (
        store.opened() if store is not None else nullcontext(),
        surface_of(model, loss_fn, seed=seed, precision=bits, ranges=ranges) as surface,
    ):
        for done, (i, j) in enumerate(points.points):
            if store is not None and (i, j) in store.losses:
                known[i, j] = store.losses[i, j]
                continue
            progress(done, grid * grid)
            known[i, j] = surface.loss_at(points.values[i], points.values[j])
            if store is not None:
                store.add((i, j), known[i, j])
    progress(grid * grid, grid * grid)
    if store is not None:
        store.remove()
    return Landscape(
        alphas=points.values,
        betas=points.values,
        losses=points.table(known),
        label=label,
        precision=describe_precision(model, bits),
        num_samples=num_samples,
        seed=seed,
        ranges=ranges,
        origin=origin,
    )


def _resolve_bits(
    model: nn.Module, precision: Assignment | None
) -> Precision | dict[str, Precision]:
    """The bits of the model, or of each layer. Raises for a float model with bits."""
    if precision is None:
        return get_precision(model) if is_converted(model) else Precision()
    if isinstance(precision, str | Precision):
        bits = Precision.parse(precision)
        if bits.quantized_roles:
            quantized_layers(model)  # raises
        return bits
    with at_precision(model, precision):
        return get_precision(model)
