"""The bits and kernels of a model's layers: set them, read them, change them for a `with` block."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from bitcycle.bits import Bits
from bitcycle.formats.catalogue import Format
from bitcycle.gpu import driver
from bitcycle.kernels.choice import recorded_kernel
from bitcycle.native.library import instruction_set
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.patterns import NamedModule, Pattern, check_mapping, last_match, named_modules
from bitcycle.precision import ROLES, Precision

PrecisionLike = Precision | str
ModelPrecision = Precision | dict[str, Precision]  # of all layers, or by the layer's name
LayerBits = PrecisionLike | int | Format
Assignment = LayerBits | Mapping[Pattern, LayerBits]


def is_converted(model: nn.Module) -> bool:
    """Whether the model has a quantized layer."""
    return any(isinstance(module, QuantizedLayer) for module in model.modules())


def quantized_layers(model: nn.Module) -> list[tuple[NamedModule, QuantizedLayer]]:
    """Every converted layer with its names; a ValueError if there is none."""
    layers = [
        (entry, entry.module)
        for entry in named_modules(model)
        if isinstance(entry.module, QuantizedLayer)
    ]
    if not layers:
        raise ValueError(
            "the model has no quantized layer; convert it first: bitcycle.quantize_model(model)"
        )
    return layers


def set_precision(model: nn.Module, precision: Assignment) -> None:
    """Set the bits of every converted layer, or of the layers that patterns select.

    precision: a number of bits or a format for every role the quantizer has a rule for, a text
    ("FW4/BW8", "w4a4e8", "bf16", "w=nvfp4,a=nvfp4,e=bf16", "fp32"), a `Precision`, or a dict from
    patterns to those. Of several patterns that select a layer, the last one counts. bf16 and fp16
    suit every quantizer; other formats need their own, such as quantizer="nvfp4".

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
    >>> set_precision(model, {"*": "w8a8e8", "1": "w4a4e8"})
    >>> [str(layer.precision) for layer in model]
    ['w8a8e8', 'w4a4e8']
    >>> set_precision(model, 4)  # weights, activations and errors
    >>> set_precision(model, "bf16")
    """
    layers = quantized_layers(model)
    for layer, bits in _resolve(layers, precision):
        layer.set_precision(bits)


def _resolve(
    layers: list[tuple[NamedModule, QuantizedLayer]], precision: Assignment
) -> list[tuple[QuantizedLayer, Precision]]:
    """The bits of each layer; checks all of them before any is written."""
    if not isinstance(precision, Mapping):
        bits = _read(precision)
        resolved = [(layer, bits) for _, layer in layers]
    else:
        check_mapping(precision, [entry for entry, _ in layers], "set_precision")
        parsed = {pattern: _read(bits) for pattern, bits in precision.items()}
        picked = [(layer, last_match(parsed, entry)) for entry, layer in layers]
        resolved = [(layer, bits) for layer, bits in picked if bits is not None]
    for layer, bits in resolved:
        layer.check_precision(bits)
    return resolved


def _read(precision: LayerBits) -> Precision:
    """An int or a format gives its bits to every role."""
    if precision is None or isinstance(precision, Precision | str):
        return Precision.parse(precision)  # which refuses None
    return Precision(**dict.fromkeys(ROLES, Bits.of(precision).plain))


def get_precision(model: nn.Module) -> ModelPrecision:
    """The bits in force on all converted layers, or a dict by layer name if they differ.

    A role that no quantizer of the model has a rule for is None (float32), whatever bits it was
    given: nothing rounds it. A role that some layers have a rule for keeps its bits.
    `set_precision` accepts both forms, and the model computes the same after
    `set_precision(model, get_precision(model))`. The bits that a layer was given are its attribute
    `precision`; the scheduler works with those.

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Linear(4, 2), "sbm")  # no rule for weight gradients
    >>> set_precision(model, "FW8/BW8")
    >>> print(get_precision(model), model.precision)
    w8a8e8 w8a8e8g8
    """
    layers = quantized_layers(model)
    roles = rounded_roles(layer for _, layer in layers)
    by_name = {entry.name: layer.precision.in_force(roles) for entry, layer in layers}
    distinct = set(by_name.values())
    return distinct.pop() if len(distinct) == 1 else by_name


def rounded_roles(layers: Iterable[QuantizedLayer]) -> frozenset[str]:
    """The roles that any of these layers has and its quantizer rounds."""
    return frozenset(
        role
        for layer in layers
        for role in layer.own_roles
        if role in layer.settings.quantizer.roles
    )


def bits_in_force(precision: ModelPrecision, roles: Collection[str]) -> ModelPrecision:
    """`Precision.in_force` of all layers or of each."""
    if isinstance(precision, Precision):
        return precision.in_force(roles)
    return {name: bits.in_force(roles) for name, bits in precision.items()}


def describe_bits(precision: ModelPrecision) -> str:
    """The bits of all layers as text, or the distinct ones if layers differ.

    >>> describe_bits({"0": Precision(weight=4), "1": Precision()})
    'fp32 / w4 by layer'
    """
    if isinstance(precision, Precision):
        return str(precision)
    return " / ".join(sorted({str(bits) for bits in precision.values()})) + " by layer"


@contextmanager
def at_precision(model: nn.Module, precision: Assignment) -> Iterator[nn.Module]:
    """Set other bits inside a `with` block; every layer's own bits are restored after it.

    >>> from bitcycle.convert import quantize_model
    >>> model = quantize_model(nn.Linear(4, 2))
    >>> with at_precision(model, "FW4/BW8"):
    ...     print(get_precision(model))
    w4a4e8
    >>> print(get_precision(model))
    fp32
    """
    before = [(layer, layer.precision) for _, layer in quantized_layers(model)]
    set_precision(model, precision)
    try:
        yield model
    finally:
        for layer, bits in before:
            layer.set_precision(bits)


def kernels_by_layer(model: nn.Module) -> dict[str, str]:
    """The name of each converted layer's kernel."""
    layers = [module for module in model.modules() if isinstance(module, QuantizedLayer)]
    return {layer.settings.name: layer.kernel.name for layer in layers}


def kernel_state(model: nn.Module) -> dict[str, Any]:
    """What `restore_kernels` needs: part of a run's state, in JSON types."""
    layers = [module for module in model.modules() if isinstance(module, QuantizedLayer)]
    native = [layer.kernel for layer in layers if layer.kernel.name == "native"]
    return {
        "kernels": kernels_by_layer(model),
        "has_native_library": instruction_set() is not None,
        "native_takes_bf16": all(kernel.takes_bf16 for kernel in native),
        **gpu_kernel_state(model),
    }


def gpu_kernel_state(model: nn.Module) -> dict[str, Any]:
    """Whether layers are on a GPU that Triton drives, and the kernels that failed there."""
    layers = [module for module in model.modules() if isinstance(module, QuantizedLayer)]
    has_kernels = any(layer.control.is_cuda for layer in layers) and driver.is_ready()
    failed = sorted(driver.failures()) if has_kernels else []
    return {"has_gpu_kernels": has_kernels, "failed_gpu_kernels": failed}


def restore_kernels(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Use the kernels of `kernel_state`, whatever "auto" would choose now.

    Kernels of a GPU that failed are not tried again in this process. Without Triton rounding is the
    same, to the last bit. Raises ValueError where a kernel that multiplies is missing.
    """
    has_library = bool(state["has_native_library"])
    driver.leave_out(state.get("failed_gpu_kernels", ()))
    for layer in model.modules():
        if not isinstance(layer, QuantizedLayer):
            continue
        given = layer.settings.kernel.name  # not what "auto" is for now
        kernel = recorded_kernel(
            state["kernels"].get(layer.settings.name, given),
            has_library=has_library,
            takes_bf16=bool(state.get("native_takes_bf16")),  # not before it was recorded
            has_gpu_kernels=bool(state.get("has_gpu_kernels")),
            device_type=layer.control.device.type,
        )
        if kernel != layer.settings.kernel:
            layer.change_settings(
                replace(layer.settings, kernel=kernel, kernel_reason="as the run began")
            )
