"""Two random directions in weight space, scaled filter by filter to the weights they start from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bitcycle.data.counter import mix, uniforms

EPSILON = 1e-10
_MASK = (1 << 64) - 1

Direction = dict[str, Tensor]  # by parameter name; parameters that do not move are not in it


def gaussian(size: int, *, seed: int, number: int, name: str) -> NDArray[np.float64]:
    """Standard normal numbers, a function of nothing but the arguments (Box and Muller).

    number: which of the two directions. name: the parameter's, so that every model that has a
    parameter of this name and size gets these very numbers, whatever else it has.

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
    """Each slice along dimension 0 gets the norm of the weight's: d_i |w_i| / (|d_i| + 1e-10).

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
    """Those with filters: two dimensions and more. Biases and norms have direction zero."""
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
    """Two filter-normalized Gaussian directions of a model, from its present weights.

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
    """Equal for models that share their directions: a hash of names and shapes."""
    text = ";".join(f"{name}:{tuple(value.shape)}" for name, value in sorted(parameters))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
