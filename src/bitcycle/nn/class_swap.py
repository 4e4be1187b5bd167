"""Which class a float module becomes: the registry of layers, and types made on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from bitcycle.nn.third_party import find_layer, module_names
from bitcycle.registry import Registry

if TYPE_CHECKING:
    from bitcycle.nn.layer import QuantizedLayer

LAYERS: Registry[type[QuantizedLayer]] = Registry("layer", "bitcycle.nn", module_names())

_converted_types: dict[type[nn.Module], type[QuantizedLayer]] = {}


def qualified_name(kind: type) -> str:
    """The name a layer class is registered under.

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


def converted_type(kind: type[nn.Module]) -> type[QuantizedLayer]:
    """The class an instance of `kind` becomes; made on demand for subclasses and remembered."""
    if kind not in _converted_types:
        base = registered_base(kind)
        assert base is not None
        name = qualified_name(base)
        layer = LAYERS[name] if name in LAYERS else find_layer(base)
        is_whole = issubclass(layer, kind)
        name = layer.__name__ if is_whole else f"Quantized{kind.__name__}"
        parents = (layer,) if is_whole else (layer, kind)
        _converted_types[kind] = type(name, parents, {"float_type": kind, "__doc__": layer.__doc__})
    return _converted_types[kind]


def rebuild(kind: type[nn.Module]) -> QuantizedLayer:
    """Unpickles a converted layer: its class may be one that is made on demand."""
    cls = converted_type(kind)
    return cls.__new__(cls)
