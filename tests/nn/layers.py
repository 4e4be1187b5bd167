"""Converted layers for the tests, and what the oracle says they should compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.nn import QuantizedLayer
from bitcycle.quantizers import SBM

from .. import naive


def convert(
    layer: nn.Module, precision: str | None = None, *, seed: int = 0, **rules: Any
) -> QuantizedLayer:
    """The layer converted with sbm and nearest error rounding (unless told otherwise)."""
    quantizer = SBM(**{"error_rounding": "nearest", **rules})
    converted = bc.quantize_model(layer, quantizer, kernel="simulate", seed=seed)
    assert isinstance(converted, QuantizedLayer)
    if precision is not None:
        bc.set_precision(converted, precision)
    return converted


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
