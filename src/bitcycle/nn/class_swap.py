"""Class swap: conversion changes a module's class and nothing else, so it can be undone exactly.

A converted class is a mixin and the float type: `QuantizedLinear` and `nn.Linear`. A module takes
it by `swap_class`, keeps its parameters, buffers and hooks, and returns to its float type by
`swap_back`. Classes for subclasses of a float type are made on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from bitcycle.nn.third_party import find_layer, module_names
from bitcycle.registry import Registry

if TYPE_CHECKING:
    from bitcycle.nn.layer import QuantizedLayer


class SwappedModule(nn.Module):
    """The base of every mixin that `swap_class` puts before a float module type."""

    name_prefix: ClassVar[str] = "Quantized"  # of the classes made for subclasses
    mixin: ClassVar[type[SwappedModule]]
    float_type: ClassVar[type[nn.Module]]

    def swap_back(self) -> None:
        """Make the module an instance of its float type again."""
        self.__class__ = type(self).float_type  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = dict(self.__dict__)
        state.pop("_compiled_call_impl", None)  # module.compile(): bound to the original
        cls = type(self)  # an instance may have attributes of these names
        return _unpickle, (cls.mixin, cls.float_type), state


def swap_class(module: nn.Module, mixin: type[SwappedModule]) -> None:
    """Make a float module an instance of the mixin and of its own type."""
    module.__class__ = swapped_class(mixin, type(module))


_classes: dict[tuple[type, type], type[SwappedModule]] = {}  # by mixin and float type


def swapped_class(mixin: type[SwappedModule], kind: type[nn.Module]) -> type[SwappedModule]:
    """The class that an instance of `kind` takes with this mixin."""
    if (mixin, kind) not in _classes:
        is_complete = issubclass(mixin, kind)
        name = mixin.__name__ if is_complete else f"{mixin.name_prefix}{kind.__name__}"
        bases = (mixin,) if is_complete else (mixin, kind)
        contents = {"mixin": mixin, "float_type": kind, "__doc__": mixin.__doc__}
        _classes[mixin, kind] = type(name, bases, contents)
    return _classes[mixin, kind]


def _unpickle(mixin: type[SwappedModule], kind: type[nn.Module]) -> SwappedModule:
    """Create the module without its constructor; pickle then restores its attributes."""
    cls = swapped_class(mixin, kind)
    return cls.__new__(cls)


LAYERS: Registry[type[QuantizedLayer]] = Registry("layer", "bitcycle.nn", module_names())


def qualified_name(kind: type) -> str:
    """The name a class is registered under.

    >>> qualified_name(nn.Linear)
    'torch.nn.modules.linear.Linear'
    """
    return f"{kind.__module__}.{kind.__qualname__}"


def registered_base(kind: type[nn.Module]) -> type[nn.Module] | None:
    """The nearest type in the inheritance of `kind` that a converted layer is registered for."""
    for base in kind.__mro__:
        if qualified_name(base) in LAYERS or find_layer(base) is not None:
            assert issubclass(base, nn.Module)
            return base
    return None


def layer_class(kind: type[nn.Module]) -> type[QuantizedLayer]:
    """The registered layer that modules of this type are converted to."""
    base = registered_base(kind)
    assert base is not None
    name = qualified_name(base)
    layer: type[QuantizedLayer] = LAYERS[name] if name in LAYERS else find_layer(base)
    return layer
