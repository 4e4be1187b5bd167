"""The loss of a model whose weights are moved along two filter-normalized random directions."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bitcycle.data.counter import mix, uniforms
from bitcycle.files import write_json
from bitcycle.landscape.result import Landscape, to_plain
from bitcycle.model_precision import (
    Assignment,
    ModelPrecision,
    at_precision,
    get_precision,
    quantized_layers,
)
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.precision import Precision
from bitcycle.snapshot import Snapshot
from bitcycle.train.evaluate import describe_precision, evaluation_mode, is_converted
from bitcycle.train.result import weights_digest

EPSILON = 1e-10
_MASK = (1 << 64) - 1

LossFunction = Callable[[nn.Module], float | Tensor]
Ranges = Literal["batch", "observed"]
LossAt = Callable[[float, float], float]
Direction = dict[str, Tensor]  # by parameter name; parameters that do not move are not in it


# -- directions -----------------------------------------------------------------------------------


def gaussian(size: int, *, seed: int, number: int, name: str) -> NDArray[np.float64]:
    """Standard normal numbers that depend only on the arguments (Box and Muller).

    number: of the direction, 0 or 1. name: of the parameter: models that share a parameter's name
    and size get the same numbers for it.

    >>> gaussian(2, seed=0, number=0, name="fc.weight").round(4).tolist()
    [0.0426, 0.0705]
    """
    digest = hashlib.sha256(name.encode()).digest()
    state = np.zeros(1, np.uint64)
    for key in (seed, number, int.from_bytes(digest[:8], "little")):
        state = mix(state ^ np.array([key & _MASK], np.uint64))
    half = (size + 1) // 2
    random = uniforms(mix(state ^ mix(np.arange(2 * half, dtype=np.uint64))))
    radius, angle = np.sqrt(-2 * np.log1p(-random[:half])), 2 * np.pi * random[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


def filter_normalize(direction: Tensor, weight: Tensor) -> Tensor:
    """Scale each slice along dimension 0 to the norm of the weight: d_i |w_i| / (|d_i| + 1e-10).

    >>> weight = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> filter_normalize(torch.tensor([[0.0, 2.0], [1.0, 1.0]]), weight)
    tensor([[0., 5.],
            [0., 0.]])
    """
    d, w = direction.double().flatten(1), weight.detach().to(direction.device).double().flatten(1)
    scale = w.norm(dim=1, keepdim=True) / (d.norm(dim=1, keepdim=True) + EPSILON)
    scaled: Tensor = (d * scale).view(weight.shape).to(weight.dtype)
    return scaled


def moving_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters with two dimensions or more. Biases and norms have direction zero."""
    found = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.dim() >= 2 and parameter.is_floating_point() and parameter.numel()
    }
    if not found:
        raise ValueError(
            f"a {type(model).__name__} has no floating-point parameter with two or more dimensions"
        )
    return found


def make_direction(model: nn.Module, seed: int, number: int) -> Direction:
    """Direction `number` (0 or 1), filter-normalized to the current weights of a model.

    Models with equal parameter names and shapes get equal Gaussian numbers from equal seeds; each
    is then scaled to its own weights.
    """
    direction = {}
    for name, parameter in moving_parameters(model).items():
        numbers = gaussian(parameter.numel(), seed=seed, number=number, name=name)
        values = torch.from_numpy(numbers).view(parameter.shape)
        direction[name] = filter_normalize(values, parameter).to(parameter.device)
    return direction


# -- losses ---------------------------------------------------------------------------------------


@contextmanager
def loss_surface(
    model: nn.Module,
    loss_fn: LossFunction,
    *,
    seed: int = 0,
    precision: ModelPrecision,
    ranges: Ranges = "batch",
) -> Iterator[LossAt]:
    """(alpha, beta) -> loss(w + alpha d1 + beta d2), in evaluation mode at these bits.

    ranges: "batch" quantizes activations by the range of each batch, so that those of moved weights
    are not clipped; "observed" by the ranges of training, as evaluation does. Afterwards, also
    after an exception, weights, buffers, ranges, bits and modes are exactly what they were.
    """
    if ranges not in get_args(Ranges):
        raise ValueError(f"ranges ({ranges!r}) must be one of {', '.join(get_args(Ranges))}")
    parameters = moving_parameters(model)
    weights = {name: p.detach().clone() for name, p in parameters.items()}
    first, second = (make_direction(model, seed, number) for number in (0, 1))

    def loss_at(alpha: float, beta: float) -> float:
        for name, parameter in parameters.items():
            weight = weights[name]
            if alpha or beta:  # + 0 would turn -0 into 0
                weight = weight.add(first[name], alpha=alpha).add_(second[name], alpha=beta)
            parameter.copy_(weight)
        loss = loss_fn(model)
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise ValueError(f"the loss must be one number, got shape {tuple(loss.shape)}")
        return float(loss)

    before = Snapshot(model)
    try:
        with evaluation_mode(model, precision):
            if ranges == "batch":
                _forget_ranges(model)
            yield loss_at
    finally:
        before.restore()


def _forget_ranges(model: nn.Module) -> None:
    """Reset the observed ranges: layers then use the range of the batch, here without a warning."""
    for layer in model.modules():
        if isinstance(layer, QuantizedLayer):
            layer.reset_ranges()
            layer.shared.has_warned_unobserved = True


def grid_values(num: int, extent: float) -> tuple[float, ...]:
    """`num` values from -extent to extent, exactly symmetric, with 0 in the middle.

    >>> grid_values(5, 1.0)
    (-1.0, -0.5, 0.0, 0.5, 1.0)
    """
    if num < 3 or num % 2 == 0:
        raise ValueError(f"grid ({num}) must be odd, so that the model is a point, and at least 3")
    if not (math.isfinite(extent) and extent > 0):
        raise ValueError(f"extent ({extent}) must be a finite number above 0")
    last = num - 1
    return tuple(extent * ((2 * i - last) / last) for i in range(num))


def loss_landscape(
    model: nn.Module,
    loss_fn: LossFunction,
    *,
    grid: int = 51,
    extent: float = 1.0,
    seed: int = 0,
    precision: Assignment | ModelPrecision | None = None,
    ranges: Ranges = "batch",
    label: str = "model",
    settings: Mapping[str, Any] | None = None,
    file: str | Path | None = None,
    replace: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Landscape:
    """Evaluate the loss on a grid of `grid` x `grid` points around the model's weights.

    `loss_fn(model)` returns the mean loss over fixed data. It is called in evaluation mode, without
    gradients, at `precision` (None: the model's current bits). Afterwards, also after an exception,
    the model is exactly what it was.

    file: written after every row; the same call after an interruption computes the rest. A file
    with other weights, settings or loss at the centre is an error, unless `replace`. settings: what
    else the losses depend on, such as the name of the data. progress: called with the number of
    points done and of all points.

    >>> def distance(model):  # from weights of 0: a bowl
    ...     return model.weight.square().sum()
    >>> layer = nn.Linear(3, 2)
    >>> found = loss_landscape(layer, distance, grid=3)
    >>> found.alphas, found.center == distance(layer).item()
    ((-1.0, 0.0, 1.0), True)
    """
    alphas = grid_values(grid, extent)
    bits = _resolve_bits(model, precision)
    own = {"grid": grid, "extent": extent, "seed": seed, "ranges": ranges, "bits": str(bits)}
    found: dict[str, Any] = {
        "label": label,
        "precision": describe_precision(model, bits),
        "settings": {**own, **_describe(model), **(settings or {})},
        "alphas": alphas,
        "losses": [],
    }
    store = None if file is None else Path(file)
    with loss_surface(model, loss_fn, seed=seed, precision=bits, ranges=ranges) as loss_at:
        found["settings"]["center"] = to_plain(loss_at(0.0, 0.0))  # the same data and arithmetic?
        if store is not None and store.exists():
            found["losses"] = _read_rows(store, found["settings"], replace)
        for i in range(len(found["losses"]), grid):
            row: list[float] = []
            for j in range(grid):
                progress(i * grid + j, grid * grid)
                row.append(loss_at(alphas[i], alphas[j]))
            found["losses"].append(row)
            if store is not None:
                write_json(store, to_plain(found))
    progress(grid * grid, grid * grid)
    landscape = Landscape.from_dict(found)
    if store is not None:
        landscape.write(store)
    return landscape


def _read_rows(file: Path, settings: Mapping[str, Any], replace: bool) -> list[list[float]]:
    """The rows in a file. Other settings than these are an error, unless `replace`."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        old, rows = dict(stored["settings"]), [list(map(float, row)) for row in stored["losses"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} is not a landscape ({type(error).__name__}: {error})") from None
    changed = [name for name in {**settings, **old} if old.get(name) != settings.get(name)]
    if changed and not replace:
        values = ", ".join(f"{name} {old.get(name)}, not {settings.get(name)}" for name in changed)
        raise ValueError(f"{file} has another landscape ({values}); --replace overwrites it")
    return [] if changed else rows


def _resolve_bits(
    model: nn.Module, precision: Assignment | ModelPrecision | None
) -> ModelPrecision:
    """The bits of the model, or of each layer. Raises for a float model with bits."""
    if precision is None:
        return get_precision(model) if is_converted(model) else Precision()
    if isinstance(precision, str | Precision):
        bits = Precision.parse(precision)
        if bits.quantized_roles:
            quantized_layers(model)  # raises
        return bits
    with at_precision(model, precision):  # type: ignore[arg-type]
        return get_precision(model)


def _describe(model: nn.Module) -> dict[str, Any]:
    """What the losses of a model depend on; models with equal `shapes` share their directions."""
    parameters = sorted(moving_parameters(model).items())
    shapes = ";".join(f"{name}:{tuple(value.shape)}" for name, value in parameters)
    return {
        "weights": weights_digest(model),
        "shapes": hashlib.sha256(shapes.encode()).hexdigest()[:16],
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
