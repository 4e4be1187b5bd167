"""Converted layers for the tests, and what the oracle says they should compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.kernels import choice
from bitcycle.kernels.choice import LAYERS, TOPS, TableRow, table_text
from bitcycle.native import encode, formats, products
from bitcycle.native import layer as native_layer
from bitcycle.native.layer import LayerProduct
from bitcycle.native.library import instruction_set, library
from bitcycle.nn import QuantizedLayer
from bitcycle.quantizers import SBM

from .. import naive


def convert(
    layer: nn.Module,
    precision: str | None = None,
    *,
    seed: int = 0,
    kernel: str = "simulate",
    **rules: Any,
) -> QuantizedLayer:
    """The layer converted with sbm and nearest error rounding (unless told otherwise)."""
    quantizer = SBM(**{"error_rounding": "nearest", **rules})
    converted = bc.quantize_model(layer, quantizer, kernel=kernel, seed=seed)
    assert isinstance(converted, QuantizedLayer)
    if precision is not None:
        bc.set_precision(converted, precision)
    return converted


@contextmanager
def encoded() -> Iterator[list[str]]:
    """The roles that forward rounds, in order: by `SBM.encode`, or in a call of the library."""
    roles: list[str] = []
    encode, call = SBM.encode, LayerProduct._call_forward

    def spy_encode(self: SBM, role: str, *args: Any, **kwargs: Any) -> Any:
        roles.append(role)
        return encode(self, role, *args, **kwargs)

    def spy_call(self: LayerProduct, shape: Any, a: Any, w: Any, *args: Any) -> Tensor:
        roles.extend(["act"] if a is not None else [])  # else the codes are another layer's
        roles.extend([self.second] if w is not None else [])
        return call(self, shape, a, w, *args)

    with (
        patch.object(SBM, "encode", spy_encode),
        patch.object(LayerProduct, "_call_forward", spy_call),
    ):
        yield roles


class _Function:
    """A function of the library that notes its name when it is called."""

    def __init__(self, name: str, calls: list[str]) -> None:
        vars(self).update(name=name, calls=calls, function=getattr(library(), name))

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.function, name, value)  # argument types

    def __call__(self, *args: Any) -> Any:
        self.calls.append(self.name)
        return self.function(*args)


class _Library:
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> _Function:
        return _Function(name, self._calls)


@contextmanager
def library_calls() -> Iterator[list[str]]:
    """The names of the library's functions that are called, in order."""
    calls: list[str] = []
    modules = (encode, formats, native_layer, products)
    with ExitStack() as stack:
        for cached in (encode._functions, formats._function, native_layer._functions):
            cached.cache_clear()
            stack.callback(cached.cache_clear)
        for module in modules:
            stack.enter_context(patch.object(module, "library", lambda: _Library(calls)))
        yield calls


def use_small_table(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let "auto" take native from 2^12 multiply-accumulates on, and never between activations."""
    kernels = {0: "simulate", 1 << 12: "native"}
    rows = [
        TableRow(
            processor=instruction_set() or "avx2", layer=layer, top=top, macs_from=macs,
            rows_from=0, kernel="simulate" if layer == "matmul" else kernel, ratio=0.5,
        )
        for layer in LAYERS for top in TOPS for macs, kernel in kernels.items()
    ]  # fmt: skip
    path = folder / "table.csv"
    path.write_text(table_text(rows))
    monkeypatch.setenv(choice.TABLE_SWITCH, str(path))


def describe(layer: nn.Module) -> naive.Conv:
    """The oracle's description of a torch convolution, read from its constructor's arguments."""
    kernel, dilation = layer.kernel_size, layer.dilation
    if layer.padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        before = tuple(t // 2 for t in totals)
        after = tuple(t - t // 2 for t in totals)
    else:
        before = (0,) * len(kernel) if layer.padding == "valid" else layer.padding
        after = before
    return naive.Conv(
        stride=layer.stride,
        before=before,
        after=after,
        dilation=dilation,
        groups=layer.groups,
        mode=layer.padding_mode,
        transposed=layer.transposed,
        output_padding=layer.output_padding,
    )


def expected_products(
    layer: nn.Module, x: Tensor, e: Tensor, *, weight: int | None, act: int | None,
    error: int | None, within: tuple[float, float] | None = None,
) -> naive.Products:  # fmt: skip
    """Output and gradients of a converted layer; `within`: the running range in evaluation."""
    low, high = (x.min(), x.max()) if within is None else map(torch.tensor, within)
    a = naive.grid(x, act, low, high)
    q = naive.per_tensor(e, error)
    w = layer.weight.detach()
    bias = None if layer.bias is None else layer.bias.detach()
    if isinstance(layer, nn.Linear):
        return naive.linear(a, naive.per_channel(w, weight), bias, q)
    groups = layer.groups if layer.transposed else 0
    return describe(layer).products(a, naive.per_channel(w, weight, groups), bias, q)


def run(layer: nn.Module, x: Tensor, e: Tensor | None = None, **kwargs: Any) -> naive.Products:
    """One forward and backward of a layer; `e` defaults to all ones."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    layer.zero_grad()
    output = layer(x, **kwargs)
    output.backward(torch.ones_like(output) if e is None else e)
    assert x.grad is not None
    weight_grad = layer.weight.grad
    assert isinstance(weight_grad, Tensor)
    return naive.Products(output.detach(), x.grad, weight_grad.clone())


def assert_products_close(actual: naive.Products, expected: naive.Products) -> None:
    """Equal but for float32 accumulation: 1e-5 of each product's largest entry."""
    for name in ("output", "grad_input", "grad_weight"):
        ours, theirs = getattr(actual, name).double(), getattr(expected, name).double()
        assert ours.shape == theirs.shape, name
        scale = float(theirs.abs().max()) if theirs.numel() else 1.0
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=1e-5 * scale + 1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )
