"""Small functions compiled into one pass over memory, with the plain function as the fallback.

`torch.compile` is asked only when it pays (large tensors, after enough of them), is inlined when
the caller is being compiled already, and is given up, with one warning per process, on a machine
without a working compiler. Plain and compiled give the same bits, so the choice never changes a
result.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import Tensor

from bitcycle.warnings import BitcycleWarning

MIN_ELEMENTS = 1 << 16  # below this the call overhead of a compiled function exceeds its gain
WARM_UP = 1 << 28  # elements done plainly first: a cold compiler takes 15 s, a short script less
SWITCH = "BITCYCLE_COMPILE"  # environment: 0 keeps every pass eager


Kind = tuple[tuple[torch.dtype, int, str], ...]  # dtype, rank and device of each argument


class Fused:
    """One function, compiled for large tensors once `WARM_UP` elements of such have gone by.

    >>> double = Fused(lambda x: x + x)
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """

    _has_warned: ClassVar[bool] = False  # what breaks one pass usually breaks all of them

    def __init__(self, function: Callable[..., Tensor]) -> None:
        functools.update_wrapper(self, function)
        self.plain = function
        self._compiled: dict[Kind, Callable[..., Tensor]] = {}
        self._num_seen = 0
        self._is_broken = os.environ.get(SWITCH) == "0"

    def __call__(self, x: Tensor, *args: Any) -> Tensor:
        """`x` decides by its size; it should be dense, and of few ranks and dtypes over a run."""
        if torch.compiler.is_compiling() or self._is_broken or x.numel() < MIN_ELEMENTS:
            return self.plain(x, *args)
        self._num_seen += x.numel()
        if self._num_seen < WARM_UP:
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
    """The same function with code of its own: dynamo counts recompilations by code object.

    One function that sees many dtypes and ranks would exceed its limit; one copy for each kind of
    arguments is compiled once, for all sizes.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{number}")
    return FunctionType(
        code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
    )
