"""Random operands, spies and a float64 reference for the kernels' tests.

The reference shares nothing with the kernels: values in float64 straight from codes, scales and
offsets, multiplied by the slow products of `tests.bitcycle.naive`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.kernels import matrices, native
from bitcycle.kernels.base import KERNELS, MATMULS
from bitcycle.kernels.geometry import ConvGeometry, LinearGeometry
from bitcycle.kernels.simulate import FloatProducts
from bitcycle.native import products
from bitcycle.quantizers import SBM
from bitcycle.quantizers.base import Quantized

from .. import naive

thrifty = settings(
    max_examples=50,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

KINDS = ("centred", "relu", "above", "below", "tiny", "constant", "zeros")
LAYOUTS = ("contiguous", "turned", "gaps", "channels_last")
seeds = st.integers(0, 2**31 - 1)
kinds = st.sampled_from(KINDS)
layouts = st.sampled_from(LAYOUTS)
# bits now, and the most bits ever, which are what a kernel goes by
widths = st.integers(2, 8).flatmap(lambda bits: st.tuples(st.just(bits), st.integers(bits, 8)))


def numbers(shape: tuple[int, ...], kind: str, seed: int) -> Tensor:
    """Random floats of one kind: offsets of either sign, magnitudes, constants."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    made = {
        "centred": x,
        "relu": x.relu(),
        "above": x + 3,
        "below": 30 * x - 150,
        "tiny": 1e-4 * x,
        "constant": torch.full(shape, -0.7),
        "zeros": torch.zeros(shape),
    }
    return made[kind]


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same elements: contiguous, with the last dimension outermost, with gaps, NHWC."""
    if layout == "turned":
        return x.movedim(-1, 0).contiguous().movedim(0, -1)
    if layout == "gaps":
        wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1] + 1, dtype=x.dtype)[..., 1::2]
        return wide.copy_(x)
    if layout == "channels_last" and x.dim() >= 3:
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    return x.contiguous()


def quantized(
    x: Tensor,
    width: tuple[int, int],
    *,
    keep: tuple[int, ...] = (),
    layout: str = "contiguous",
    zero: Any = "real",
) -> Quantized:
    """Codes of sbm's grid; width: bits now, most bits ever. The codes get the layout."""
    sbm, (bits, top) = SBM(zero=zero, error_rounding="nearest"), width
    role = "weight" if keep else "act"
    within, levels = sbm.range_of(role, x, keep), torch.tensor(2**bits - 1)
    q = sbm.encode(role, x, levels, within, as_codes=True)
    assert q.codes is not None
    return replace(q, codes=laid_out(q.codes, layout), top=top)


def exact(q: Quantized) -> Tensor:
    """scale * code + offset in float64."""
    if q.codes is None:
        assert q.values is not None
        return q.values.double()
    assert q.scale is not None
    assert q.offset is not None
    return q.codes.double() * q.scale.double() + q.offset.double()


def reach(q: Quantized) -> Tensor:
    """How large the terms are that add up to a value: |value| + the range."""
    if q.codes is None:
        return exact(q).abs()
    assert q.scale is not None
    assert q.half is not None
    return exact(q).abs() + q.scale.double() * 2 * q.half.double()


# How far one element may be off, relative to the absolute terms of its sum: by float32 rounding of
# the sum of native's four terms, or of values to 16 bits where a scale lies on the summed axis.
TOLERANCES = {
    "simulate": KERNELS["simulate"].error_bound(LinearGeometry()),
    "native": 2.0**-21,
    "folded": KERNELS["native"].error_bound(LinearGeometry()),
}


def assert_close(
    kernel: str,
    actual: Tensor,
    reference: Callable[[Tensor, Tensor], Tensor],
    x: Quantized,
    y: Quantized,
    bias: Tensor | None = None,
    *,
    is_folded: bool = False,
) -> None:
    """Each element is within the kernel's tolerance of the absolute terms."""
    tolerance = TOLERANCES["folded" if is_folded and kernel == "native" else kernel]
    expected, terms = reference(exact(x), exact(y)), reference(reach(x), reach(y))
    if bias is not None:
        view = (-1, *[1] * (actual.dim() - 2)) if reference.__name__ == "conv" else (-1,)
        expected, terms = expected + bias.double().view(view), terms + bias.abs().view(view)
    assert actual.shape == expected.shape
    assert actual.dtype == torch.float32
    error = (actual.double() - expected).abs()
    relative = float((error / terms.clamp_min(1e-30)).max()) if error.numel() else 0.0
    assert relative <= tolerance, f"off by {relative:.2e} of the terms"


def naive_conv(geometry: ConvGeometry) -> naive.Conv:
    """The oracle's description of a geometry."""
    ends = geometry.end_padding or (0,) * geometry.num_dims
    return naive.Conv(
        stride=geometry.stride,
        before=geometry.padding,
        after=tuple(p + end for p, end in zip(geometry.padding, ends, strict=True)),
        dilation=geometry.dilation,
        groups=geometry.groups,
        transposed=geometry.transposed,
        output_padding=geometry.output_padding,
    )


FUNCTIONS = ("gemm", "gemm_folded", "conv_output", "conv_grad_input", "conv_grad_weight")


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts the products that `native` leaves to float32, and the library's calls."""
    calls: Counter[str] = Counter()

    def spied(name: str, function: Any) -> Any:
        def spy(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return spy

    floats = {name: spied("float", getattr(FloatProducts, name)) for name in MATMULS}
    with ExitStack() as stack:
        spy = type("Spy", (FloatProducts,), floats)
        for module in (native, matrices):
            stack.enter_context(patch.object(module, "FloatProducts", spy))
        for name in FUNCTIONS:
            stack.enter_context(patch.object(products, name, spied(name, getattr(products, name))))
        yield calls


def assert_path(kernel: str, calls: Counter[str], expected: str) -> None:
    """`native` formed one product by this function ("float" if it has none)."""
    if kernel == "native":
        assert calls == {expected: 1}
    else:
        assert not any(calls[name] for name in FUNCTIONS)
