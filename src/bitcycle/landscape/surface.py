"""The loss of a model whose weights are moved along two directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bitcycle.assign import get_precision
from bitcycle.landscape.directions import make_directions, moving_parameters
from bitcycle.nn.base import QuantizedLayer
from bitcycle.precision import Precision
from bitcycle.snapshot import Snapshot
from bitcycle.train.evaluate import evaluating, is_converted

LossFunction = Callable[[nn.Module], float | Tensor]
Ranges = Literal["batch", "observed"]


class Surface:
    """loss(w + alpha d1 + beta d2). Every point starts from the same w: the order is irrelevant.

    Moves the model's weights and leaves them moved; `surface_of` puts them back.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction, *, seed: int = 0) -> None:
        self._model, self._loss_fn = model, loss_fn
        self._parameters = moving_parameters(model)
        self._weights = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._first, self._second = make_directions(model, seed)

    @torch.no_grad()
    def loss_at(self, alpha: float, beta: float) -> float:
        """The loss at one point; NaN and infinity are values like others. At (0, 0) w is w."""
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
    """A surface in evaluation mode at these bits (None: the model's own), without gradients.

    ranges: "batch" puts activations on the range of each batch, so that those of moved weights are
    not clipped; "observed" on the ranges of training, as evaluation does. Afterwards, also after an
    exception, the model is to the bit what it was: weights, buffers, ranges, bits and modes.
    """
    check_ranges(ranges)
    if precision is None:
        precision = get_precision(model) if is_converted(model) else Precision()
    before = Snapshot(model)
    try:
        with evaluating(model, precision):
            if ranges == "batch":
                _forget_ranges(model)
            yield Surface(model, loss_fn, seed=seed)
    finally:
        before.put_back()


def check_ranges(ranges: str) -> None:
    """Raise for a word that is no policy."""
    if ranges not in get_args(Ranges):
        raise ValueError(f"ranges ({ranges!r}) must be one of {', '.join(get_args(Ranges))}")


def _forget_ranges(model: nn.Module) -> None:
    """A layer that has observed nothing takes the range of the batch, and here need not warn."""
    for layer in model.modules():
        if isinstance(layer, QuantizedLayer):
            layer.reset_ranges()
            layer.shared.has_warned_unobserved = True
