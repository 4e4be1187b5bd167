"""Modules converted for what they keep, not for what they multiply: they have no bits of their own.

A companion computes what its float module computes, to the bit, and takes less memory for it while
a layer of the model has bits. It appears in no audit and no schedule, and adds no buffer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bitcycle.nn.class_swap import qualified_name
from bitcycle.nn.layer import ModelState
from bitcycle.registry import Registry


class Companion(nn.Module):
    """Mixed in before a float module type by class swap; `shared` is the layers' of the model."""

    shared: ModelState
    float_type: type[nn.Module]

    def saves_memory(self, x: Tensor) -> bool:
        """Whether to: a layer has bits, and an ordinary tensor waits for its gradient."""
        return self.shared.has_bits and awaits_gradient(x)

    def become_float(self) -> None:
        """Be an instance of the float type again, exactly as before."""
        kind = self.float_type
        del self.shared
        self.__class__ = kind  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = dict(self.__dict__)
        state.pop("_compiled_call_impl", None)  # module.compile(): bound to the original
        return _rebuild, (self.float_type,), state


def awaits_gradient(x: Tensor) -> bool:
    """Whether this is an ordinary tensor of which something is kept for a backward pass."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return False
    is_strided = x.layout is torch.strided and not x.is_nested
    return is_strided and type(x) in (Tensor, nn.Parameter)


COMPANIONS: Registry[type[Companion]] = Registry("companion", "bitcycle.nn")
_types: dict[type[nn.Module], type[Companion]] = {}


def can_accompany(module: nn.Module) -> bool:
    """Whether there is a companion for it, and nothing about it that conversion would change."""
    if isinstance(module, Companion):
        return True
    base = _registered_base(type(module))
    if base is None or isinstance(module, torch.jit.ScriptModule):
        return False
    is_plain = type(module).forward is base.forward and "forward" not in module.__dict__
    return is_plain and not hasattr(module, "shared")


def accompany(module: nn.Module, shared: ModelState) -> None:
    """Make the module a companion of the layers that share this state."""
    if not isinstance(module, Companion):
        module.__class__ = _companion_type(type(module))
    module.shared = shared  # type: ignore[assignment]


def _registered_base(kind: type[nn.Module]) -> type[nn.Module] | None:
    return next((base for base in kind.__mro__ if qualified_name(base) in COMPANIONS), None)


def _companion_type(kind: type[nn.Module]) -> type[Companion]:
    if kind not in _types:
        base = _registered_base(kind)
        assert base is not None
        companion = COMPANIONS[qualified_name(base)]
        parents = (companion,) if kind is base else (companion, kind)
        name = companion.__name__ if kind is base else f"Masked{kind.__name__}"
        _types[kind] = type(name, parents, {"float_type": kind, "__doc__": companion.__doc__})
    return _types[kind]


def _rebuild(kind: type[nn.Module]) -> Companion:
    """Unpickles a companion: its class is made on demand."""
    cls = _companion_type(kind)
    return cls.__new__(cls)
