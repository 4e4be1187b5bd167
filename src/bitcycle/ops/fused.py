"""Large tensors are processed by a fused kernel: small functions compiled by torch.compile.

A function is compiled after it has processed enough large tensors, and is inlined when its caller
is being compiled. Without a working compiler the plain function runs, with one warning per process.
Plain and compiled results are bit-identical.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import Tensor

from bitcycle.ops.layout import flat, has_outer_rows, is_per_row, like, rows
from bitcycle.warnings import BitcycleWarning

MIN_ELEMENTS = 1 << 16  # below this the call overhead of a compiled function exceeds its gain
WARM_UP = 1 << 28  # elements before compiling: that takes 15 s, more than a short script
SWITCH = "BITCYCLE_COMPILE"  # environment variable: 0 compiles nothing

Kind = tuple[tuple[torch.dtype, int, str], ...]  # dtype, rank and device of each argument


@contextmanager
def compile_after(num_elements: int) -> Iterator[None]:
    """Compile after this many elements instead of WARM_UP inside the `with`; 0: at once."""
    global WARM_UP  # noqa: PLW0603
    former = WARM_UP
    WARM_UP = num_elements
    try:
        yield
    finally:
        WARM_UP = former


class Fused:
    """A function that is compiled after `WARM_UP` elements of large tensors.

    >>> double = Fused(lambda x: x + x)
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """

    _has_warned: ClassVar[bool] = False  # a missing compiler affects every function

    def __init__(self, function: Callable[..., Tensor]) -> None:
        functools.update_wrapper(self, function)
        self.plain = function
        self._compiled: dict[Kind, Callable[..., Tensor]] = {}
        self._num_elements = 0
        self._is_broken = os.environ.get(SWITCH) == "0"

    def __call__(self, x: Tensor, *args: Any) -> Tensor:
        """Run the function; the size of `x` decides whether compiled. `x` should be dense."""
        if torch.compiler.is_compiling() or self._is_broken or x.numel() < MIN_ELEMENTS:
            return self.plain(x, *args)
        self._num_elements += x.numel()
        if self._num_elements < WARM_UP:
            return self.plain(x, *args)
        kind = _kind(x, *args)
        try:
            if kind not in self._compiled:
                copy = _copy(self.plain, len(self._compiled))
                self._compiled[kind] = torch.compile(copy, dynamic=True, fullgraph=True)
            return self._compiled[kind](x, *args)
        except Exception as error:  # no compiler, a broken one, an unwritable cache: many types
            if type(error).__name__ == "FailOnRecompileLimitHit":  # no graph serves these sizes
                self._compiled[kind] = self.plain
            else:
                self._give_up(error)
            return self.plain(x, *args)

    def apply_scaled(self, x: Tensor, scale: Tensor, offset: Tensor, *args: Any) -> Tensor:
        """Run the function with one scale and offset, or one per row; keeps the layout of `x`."""
        if not torch.compiler.is_compiling():
            if scale.dim() == 0:
                return like(self(flat(x), scale, offset, *args), x)
            if is_per_row(scale, x) and has_outer_rows(x):
                return like(self(rows(x), scale.view(-1, 1), offset.view(-1, 1), *args), x)
        return self.plain(x, scale, offset, *args)

    def _give_up(self, error: Exception) -> None:
        self._is_broken = True
        if Fused._has_warned:
            return
        Fused._has_warned = True
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error)
        warnings.warn(
            f"quantization runs uncompiled and slower: torch.compile failed ({first_line}). "
            f"Install a C++ compiler, or set {SWITCH}=0 to silence this.",
            BitcycleWarning,
            stacklevel=3,
        )


def _kind(*args: Any) -> Kind:
    return tuple((x.dtype, x.dim(), x.device.type) for x in args if isinstance(x, Tensor))


def _copy(function: Callable[..., Tensor], number: int) -> Callable[..., Tensor]:
    """A copy with its own code object, by which dynamo counts recompilations.

    One function with many dtypes and ranks would exceed the limit. One copy for each kind of
    arguments is compiled once, for all sizes.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{number}")
    return FunctionType(
        code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
    )
