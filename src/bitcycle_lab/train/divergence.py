"""Errors for NaN and infinity in a run: which step, bits and layer.

The failing batch is run again with hooks to find the first layer with a non-finite output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bitcycle.model_precision import describe_bits
from bitcycle.nonfinite import NonFiniteError
from bitcycle.patterns import named_modules
from bitcycle_lab.data import Batch

if TYPE_CHECKING:
    from bitcycle_lab.train.session import Session


def first_nonfinite_module(model: nn.Module, call: Any) -> str | None:
    """The first leaf module whose output is not finite while `call()` runs the model."""
    found: list[str] = []
    handles = []
    for entry in named_modules(model):
        if any(True for _ in entry.module.children()):
            continue

        def look(module: nn.Module, args: Any, output: Any, name: str = entry.name) -> None:
            parts = output if isinstance(output, tuple | list) else [output]
            if not found and any(_is_nonfinite(part) for part in parts):
                found.append(name)

        handles.append(entry.module.register_forward_hook(look))
    try:
        with torch.no_grad():
            call()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _is_nonfinite(part: Any) -> bool:
    is_float = isinstance(part, Tensor) and part.is_floating_point()
    return is_float and not bool(torch.isfinite(part).all())


def check_finite(session: Session) -> None:
    """Raise NonFiniteError if a weight or buffer is not finite, before a checkpoint is written."""
    for name, value in session.model.state_dict().items():
        if _is_nonfinite(value):
            raise NonFiniteError(
                f"{name} holds NaN or infinity after step {session.step} (bits {_bits(session)}); "
                "the last checkpoint is kept"
            )


def _bits(session: Session) -> str:
    return "fp32" if session.scheduler is None else describe_bits(session.scheduler.precision)


def explain_loss(
    session: Session, batch: Batch | None, loss: float, *, name: str = "loss"
) -> NonFiniteError:
    """The error for a loss that is NaN or infinite, with the step, the bits and the first layer."""
    where = None
    if batch is not None:
        where = first_nonfinite_module(
            session.model, lambda: session.task.loss(session.model, batch)
        )
    place = f", first in the output of {where!r}" if where else ""
    return NonFiniteError(
        f"the {name} is {loss} at step {session.step} (bits {_bits(session)}){place}; the last "
        "checkpoint is kept"
    )
