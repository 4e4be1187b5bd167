"""The loss of a model whose weights are moved along two filter-normalized random directions."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bitcycle.files import to_plain, write_json
from bitcycle.model_precision import (
    Assignment,
    ModelPrecision,
    get_precision,
    is_converted,
    quantized_layers,
)
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.precision import Precision
from bitcycle.snapshot import Snapshot
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.data import Batch
from bitcycle_lab.data.counter import mix, uniforms
from bitcycle_lab.landscape.result import Landscape
from bitcycle_lab.tasks import Task
from bitcycle_lab.train.evaluate import (
    check_ranges_observed,
    describe_precision,
    eval_precision,
    evaluate_batches,
    evaluation_mode,
    load_run,
)
from bitcycle_lab.train.final_evaluation import weights_digest
from bitcycle_lab.train.run_directory import RunDirectory

EPSILON = 1e-10
_MASK = (1 << 64) - 1

LossFunction = Callable[[nn.Module], float | Tensor]
Ranges = Literal["batch", "observed"]
Direction = dict[str, Tensor]  # by parameter name; parameters that do not move are not in it


# -- the surface of a model -----------------------------------------------------------------------


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

    ranges: "batch" quantizes activations by the range of each batch, so that those of moved weights
    are not clipped; "observed" by the ranges of training, as evaluation does.

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
    bits = _bits_of(model, precision)
    known: dict[str, Any] = {
        "grid": grid, "extent": extent, "seed": seed, "ranges": ranges, "bits": str(bits),
        "weights": weights_digest(model), "threads": torch.get_num_threads(),
        "torch": str(torch.__version__), **(settings or {}),
    }  # fmt: skip
    found: dict[str, Any] = {
        "label": label,
        "precision": describe_precision(model, bits),
        "settings": known,
        "alphas": alphas,
        "losses": [],
    }
    store = None if file is None else Path(file)
    with loss_surface(model, loss_fn, seed=seed, precision=bits, ranges=ranges) as loss_at:
        known["center"] = to_plain(loss_at(0.0, 0.0))  # the same data and arithmetic?
        if store is not None and store.exists():
            found["losses"] = _read_rows(store, known, replace)
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


@contextmanager
def loss_surface(
    model: nn.Module,
    loss_fn: LossFunction,
    *,
    seed: int = 0,
    precision: ModelPrecision,
    ranges: Ranges = "batch",
) -> Iterator[Callable[[float, float], float]]:
    """(alpha, beta) -> loss(w + alpha d1 + beta d2); afterwards the model is what it was."""
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
            for layer in model.modules():
                if ranges == "batch" and isinstance(layer, QuantizedLayer):
                    layer.reset_ranges()  # without ranges, a layer takes those of the batch
                    layer.shared.has_warned_unobserved = True
            yield loss_at
    finally:
        before.restore()


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


def _bits_of(model: nn.Module, precision: Assignment | ModelPrecision | None) -> Any:
    """The bits as `at_precision` takes them. Raises for a float model with bits."""
    bits = Precision.parse(precision) if isinstance(precision, str) else precision
    if is_converted(model):
        return get_precision(model) if bits is None else bits
    if bits not in (None, Precision()):
        quantized_layers(model)  # raises
    return Precision()


def _read_rows(file: Path, settings: Mapping[str, Any], replace: bool) -> list[list[float]]:
    """The rows in a file. Other settings than these are an error, unless `replace`."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        old, rows = dict(stored["settings"]), [list(map(float, row)) for row in stored["losses"]]
    except (ValueError, TypeError, KeyError) as error:
        if replace:
            return []
        raise ValueError(
            f"{file} is not a landscape ({type(error).__name__}: {error}); "
            "replace=True (--replace) overwrites it"
        ) from None
    changed = [name for name in {**settings, **old} if old.get(name) != settings.get(name)]
    if changed and not replace:
        values = [_difference(name, old.get(name), settings.get(name)) for name in changed[:3]]
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ValueError(
            f"{file} has another landscape ({', '.join(values)}{more}); "
            "replace=True (--replace) overwrites it"
        )
    return [] if changed else rows


def _difference(name: str, old: object, new: object) -> str:
    """A setting that differs; without the hash of weights and the bits of many layers."""
    texts = [str(value) for value in (old, new)]
    if name == "weights" or max(map(len, texts)) > 40:
        return f"other {name}"
    return f"{name} {texts[0]}, not {texts[1]}"


# -- directions -----------------------------------------------------------------------------------


def gaussian(size: int, *, seed: int, number: int, name: str) -> NDArray[np.float64]:
    """Standard normal numbers that depend only on the arguments (Box and Muller).

    number: of the direction, 0 or 1. name: of the parameter.

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


# -- the surface of a run -------------------------------------------------------------------------


def run_landscape(
    directory: str | Path,
    *,
    grid: int = 25,
    extent: float = 1.0,
    seed: int = 0,
    precision: str = "high",
    ranges: Ranges = "batch",
    samples: int | None = 1000,
    checkpoint: Literal["last", "best"] = "last",
    overrides: Sequence[str] = (),
    label: str | None = None,
    file: str | Path | None = None,
    replace: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Landscape:
    """The loss landscape of a run on its first training samples, without augmentation.

    precision: high (the schedule's top), scheduled, full (float32), or bits such as w8a8. samples:
    None for the whole training split. overrides: settings that may differ on this machine, such as
    --data.root. label: the name of the run by default. The others are those of `loss_landscape`.
    """
    with load_run(directory, checkpoint=checkpoint, overrides=overrides) as (session, step):
        if not RunDirectory(directory).is_finished:
            message = f"{directory} is not finished; these are the weights of step {step}"
            warnings.warn(message, BitcycleWarning, stacklevel=2)
        config, task, device = session.config, session.task, session.device
        bits = eval_precision(precision, session.scheduler)
        if ranges == "observed":
            check_ranges_observed(session.model, bits)
        kept = None
        if samples is not None:  # the whole split may not fit in memory
            kept = [batch.to(device) for batch in first_batches(task, samples)]

        def mean_loss(model: nn.Module) -> float:
            batches = task.eval_batches("train") if kept is None else kept
            return evaluate_batches(task, model, batches, device)["loss"]

        settings = {
            "run": config.run_name, "checkpoint": checkpoint, "step": step,
            "data": config.data.name, "samples": samples,
            "batch_size": config.data.eval_batch_size, "device": str(device),
        }  # fmt: skip
        return loss_landscape(
            session.model, mean_loss, grid=grid, extent=extent, seed=seed, precision=bits,
            ranges=ranges, label=label or config.run_name, settings=settings, file=file,
            replace=replace, progress=progress,
        )  # fmt: skip


def first_batches(task: Task, num: int) -> Iterator[Batch]:
    """The first `num` training samples, in the batches of an evaluation.

    Independent samples are counted exactly. Windows of a text, which carry a state, and graphs come
    in whole batches.
    """
    if num < 1:
        raise ValueError(f"samples ({num}) must be at least 1")
    for batch in task.eval_batches("train"):
        if batch.indices is not None:
            batch = replace_fields(
                batch,
                inputs=batch.inputs[:num],
                targets=batch.targets[:num],
                indices=batch.indices[:num],
            )
        yield batch
        num -= task.inputs(batch)[0].shape[0]
        if num <= 0:
            return
