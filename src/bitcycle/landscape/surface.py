"""The loss of a model whose weights are moved along two filter-normalized random directions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bitcycle.data.counter import mix, uniforms
from bitcycle.model_precision import get_precision
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.precision import Precision
from bitcycle.snapshot import Snapshot
from bitcycle.train.evaluate import evaluation_mode, is_converted

EPSILON = 1e-10
_MASK = (1 << 64) - 1

LossFunction = Callable[[nn.Module], float | Tensor]
Ranges = Literal["batch", "observed"]
Direction = dict[str, Tensor]  # by parameter name; parameters that do not move are not in it


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
            "the model has no floating-point parameter with two dimensions or more: there is no "
            "direction to move its weights in"
        )
    return found


def make_directions(model: nn.Module, seed: int) -> tuple[Direction, Direction]:
    """Two filter-normalized Gaussian directions for the current weights of a model.

    Models with equal parameter names and shapes get equal Gaussian numbers from equal seeds; each
    is then scaled to its own weights.
    """
    parameters = moving_parameters(model)
    return _make_one(parameters, seed, 0), _make_one(parameters, seed, 1)


def _make_one(parameters: dict[str, nn.Parameter], seed: int, number: int) -> Direction:
    direction = {}
    for name, parameter in parameters.items():
        numbers = gaussian(parameter.numel(), seed=seed, number=number, name=name)
        values = torch.from_numpy(numbers).view(parameter.shape)
        direction[name] = filter_normalize(values, parameter).to(parameter.device)
    return direction


def shapes_digest(parameters: Iterable[tuple[str, Tensor]]) -> str:
    """A hash of names and shapes; models with the same hash share their directions."""
    text = ";".join(f"{name}:{tuple(value.shape)}" for name, value in sorted(parameters))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Surface:
    """loss(w + alpha d1 + beta d2). Every point starts from the same w, so the order is irrelevant.

    Leaves the weights moved; `surface_of` restores them.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction, *, seed: int = 0) -> None:
        self._model, self._loss_fn = model, loss_fn
        self._parameters = moving_parameters(model)
        self._weights = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._first, self._second = make_directions(model, seed)

    @torch.no_grad()
    def loss_at(self, alpha: float, beta: float) -> float:
        """The loss at one point; it may be NaN or infinite. At (0, 0) the weights are exactly w."""
        for name, parameter in self._parameters.items():
            weight = self._weights[name]
            if alpha or beta:  # + 0 would turn -0 into 0
                weight = weight.add(self._first[name], alpha=alpha)
                weight.add_(self._second[name], alpha=beta)
            parameter.copy_(weight)
        loss = self._loss_fn(self._model)
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise ValueError(
                f"the loss function must return one number, got a tensor of shape "
                f"{tuple(loss.shape)}; return its mean"
            )
        return float(loss)


@contextmanager
def surface_of(
    model: nn.Module,
    loss_fn: LossFunction,
    *,
    seed: int = 0,
    precision: Precision | dict[str, Precision] | None = None,
    ranges: Ranges = "batch",
) -> Iterator[Surface]:
    """The surface of a model in evaluation mode at these bits (None: the model's own).

    ranges: "batch" quantizes activations by the range of each batch, so that those of moved weights
    are not clipped; "observed" by the ranges of training, as evaluation does. Afterwards, also
    after an exception, weights, buffers, ranges, bits and modes are exactly what they were.
    """
    check_ranges(ranges)
    if precision is None:
        precision = get_precision(model) if is_converted(model) else Precision()
    before = Snapshot(model)
    try:
        with evaluation_mode(model, precision):
            if ranges == "batch":
                _forget_ranges(model)
            yield Surface(model, loss_fn, seed=seed)
    finally:
        before.restore()


def check_ranges(ranges: str) -> None:
    """Raise ValueError unless `ranges` is one of the two."""
    if ranges not in get_args(Ranges):
        raise ValueError(f"ranges ({ranges!r}) must be one of {', '.join(get_args(Ranges))}")


def _forget_ranges(model: nn.Module) -> None:
    """Reset the observed ranges: layers then use the range of the batch, here without a warning."""
    for layer in model.modules():
        if isinstance(layer, QuantizedLayer):
            layer.reset_ranges()
            layer.shared.has_warned_unobserved = True


def bits_to_plain(bits: Precision | dict[str, Precision]) -> Any:
    """Bits as text, or a text per layer."""
    if isinstance(bits, Precision):
        return str(bits)
    return {str(name): str(each) for name, each in bits.items()}
