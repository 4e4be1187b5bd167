"""Layers that read one tensor one after the other share its range and its codes.

The projections of an attention layer, or a block's first convolution and its shortcut, quantize
the same input. In training it is put on its own range, so at the same bits the result is the same:
it is computed, and kept for the backward pass, once.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from bitcycle.quantizers.base import Quantized, Range


class _Entry:
    """One tensor and what was made of it; never changed to mean another."""

    def __init__(self, x: Tensor) -> None:
        self.reference, self.version, self.address = weakref.ref(x), x._version, x.data_ptr()
        self.ranges: dict[Any, Range] = {}
        self.encoded: dict[Any, tuple[Any, Any, Quantized]] = {}
        self.packed: dict[Any, weakref.ref[Tensor]] = {}

    def is_(self, x: Tensor) -> bool:
        is_same = self.reference() is x and x._version == self.version
        return is_same and x.data_ptr() == self.address


class LastSeen:
    """The last activation that was put on a grid; keeps nothing alive but a few numbers.

    Only results of other operations: a batch may lie in a buffer that its loader writes to again
    without the tensor knowing. Threads (replicas of a model) may share one.

    >>> seen, x = LastSeen(), torch.ones(2, requires_grad=True) * 2
    >>> seen.keep_range(x, "sbm", (x[0], x[1]))
    >>> seen.range_of(x, "sbm") is not None, seen.range_of(x.clone(), "sbm") is not None
    (True, False)
    """

    def __init__(self) -> None:
        self._entry: _Entry | None = None

    def _of(self, x: Tensor) -> _Entry | None:
        entry = self._entry  # read once: another thread may put its own there
        return entry if entry is not None and x.grad_fn is not None and entry.is_(x) else None

    def range_of(self, x: Tensor, quantizer: Any) -> Range | None:
        """The range of this very tensor, if the quantizer has taken it just before."""
        entry = self._of(x)
        return None if entry is None else entry.ranges.get(quantizer)

    def keep_range(self, x: Tensor, quantizer: Any, within: Range) -> None:
        """Remember the range of a tensor; another tensor than the last is a new beginning."""
        if x.grad_fn is None:
            return
        entry = self._of(x) or _Entry(x)
        entry.ranges[quantizer] = within
        self._entry = entry

    def codes_of(self, x: Tensor, key: Any) -> Quantized | None:
        """What this very tensor became under the same rule, bits and carrier, if it still is."""
        entry = self._of(x)
        if entry is None or key not in entry.encoded:
            return None
        values, codes, rest = entry.encoded[key]
        whole = Quantized(
            rest.scale, rest.offset, _alive(values), _alive(codes), rest.half, rest.top
        )
        return None if whole.values is None and whole.codes is None else whole

    def keep_codes(self, x: Tensor, key: Any, q: Quantized) -> None:
        """Remember what a tensor became, without keeping the large part of it alive."""
        entry = self._of(x)
        if entry is None:
            return
        values, codes = (None if t is None else weakref.ref(t) for t in (q.values, q.codes))
        rest = Quantized(scale=q.scale, offset=q.offset, half=q.half, top=q.top)
        entry.encoded[key] = values, codes, rest

    def share(self, x: Tensor, key: Any, packed: Tensor) -> Tensor:
        """The packed codes another layer keeps of this very tensor, or these, now known to all."""
        entry = self._of(x)
        if entry is None:
            return packed
        other = _alive(entry.packed.get(key))
        if other is not None:
            return other
        entry.packed[key] = weakref.ref(packed)
        return packed

    def __reduce__(self) -> Any:
        return LastSeen, ()  # a copy of a model has seen nothing


def _alive(reference: weakref.ref[Tensor] | None) -> Tensor | None:
    return None if reference is None else reference()


def usable() -> bool:
    """Not while a graph is traced: there, common work is the compiler's to find."""
    return not torch.compiler.is_compiling()
