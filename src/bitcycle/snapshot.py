"""Save the state of a training in memory and restore it: model, optimizers, random generators.

`Snapshot` restores everything, any number of times. `preserved` is for a pass that must leave no
trace: it restores buffers and random states after a `with` block.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from bitcycle.nn.layer import OWN_ATTRIBUTES, QuantizedLayer


@runtime_checkable
class Stateful(Protocol):
    """Optimizers, learning-rate schedulers, scalers, data samplers, modules, ..."""

    def state_dict(self) -> Any:
        """The state."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Restore the state."""
        ...


class Snapshot:
    """The state of a model, of `others` and of the random generators.

    `restore` restores it, any number of times. Modules are restored bit for bit and in the same
    tensors: parameters, gradients, buffers (ranges, noise clocks, norm statistics), bits and modes.
    Other objects are restored through their `load_state_dict`.

    >>> layer = nn.Linear(2, 2)
    >>> before = Snapshot(layer)
    >>> _ = layer.weight.data.zero_(), torch.rand(3)
    >>> before.restore()
    >>> bool(layer.weight.any())
    True
    """

    def __init__(self, model: nn.Module, others: Iterable[Stateful] = ()) -> None:
        others = list(others)
        for other in others:
            if not isinstance(other, Stateful):
                raise TypeError(
                    f"a {type(other).__name__} cannot be restored: it has no state_dict and "
                    "load_state_dict"
                )
        modules = [model, *(other for other in others if isinstance(other, nn.Module))]
        self._modules = [_ModuleState(module) for module in modules]
        plain = [other for other in others if not isinstance(other, nn.Module)]
        self._others = [(other, copy.deepcopy(other.state_dict())) for other in plain]
        self._random = _random_state()

    def restore(self) -> None:
        """Restore everything; the model last, since a scheduler among the others sets its bits.

        If some of the others fail to load, the rest is restored before the first error is raised.
        """
        errors: list[Exception] = []
        try:
            for other, state in self._others:
                try:
                    other.load_state_dict(copy.deepcopy(state))  # an optimizer keeps the tensors
                except Exception as error:
                    errors.append(error)
        finally:
            for state in self._modules:
                state.restore()
            _restore_random_state(self._random)
        if errors:
            raise errors[0]


class _ModuleState:
    """The state of one module and its submodules."""

    def __init__(self, module: nn.Module) -> None:
        self._modes = [(each, each.training) for each in module.modules()]
        self._parameters = [(each, _copy(each), each.grad) for each in module.parameters()]
        self._grads = [None if grad is None else _copy(grad) for _, _, grad in self._parameters]
        self._buffers = [
            (each, name, buffer, _copy(buffer))
            for each in module.modules()
            for name, buffer in each._buffers.items()
            if buffer is not None
        ]
        layers = [each for each in module.modules() if isinstance(each, QuantizedLayer)]
        self._layers = [(layer, _own(layer), dict(vars(layer.shared))) for layer in layers]

    @torch.no_grad()
    def restore(self) -> None:
        for layer, own, shared in self._layers:
            vars(layer).update({name: _fresh(value) for name, value in own.items()})
            vars(layer.shared).update(shared)
        for (parameter, values, grad), grad_values in zip(
            self._parameters, self._grads, strict=True
        ):
            parameter.copy_(values)
            parameter.grad = grad
            if grad is not None and grad_values is not None:
                grad.copy_(grad_values)
        for owner, name, buffer, values in self._buffers:  # levels and noise clocks among them
            owner._buffers[name] = buffer
            buffer.copy_(values)
        for module, is_training in self._modes:
            module.training = is_training


def _own(layer: QuantizedLayer) -> dict[str, Any]:
    """A layer's bits and settings, with the kernel that "auto" chose; no write counters."""
    names = set(OWN_ATTRIBUTES) - {"shared", "recorder", "_range_version", "_written_version"}
    return {name: _fresh(getattr(layer, name)) for name in names}


def _fresh(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def _copy(x: Tensor) -> Tensor:
    return x.detach().clone()


def _random_state() -> dict[str, Any]:
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _restore_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Run with gradients on, and restore random states and buffers afterwards."""
    buffers = [
        (module, name, buffer, None if buffer.is_meta else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    has_fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(list(devices)))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        torch.backends.mha.set_fastpath_enabled(False)  # it skips the modules it runs
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(has_fast_path)
            for module, name, buffer, values in buffers:
                module._buffers[name] = buffer
                if values is not None and not torch.equal(buffer, values):
                    with torch.no_grad():
                        buffer.copy_(values)
