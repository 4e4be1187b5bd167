"""One input, several layers: the range and the codes of an activation, kept for the next layer."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from torch import Tensor

from bitcycle.quantizers.base import Quantized, Range


class InputCache:
    """The range and the codes of the last activation that was rounded, for the next layer.

    Layers that read the same tensor (the branches of a residual block; query, key and value) round
    it once. The cache holds weak references, so it keeps no large tensor alive. It serves only
    results of other operations: a data loader may overwrite a batch without the tensor knowing.
    Threads (replicas of a model) may share one.

    >>> import torch
    >>> cache, x = InputCache(), torch.ones(2, requires_grad=True) * 2
    >>> cache.keep_range(x, "sbm", (x[0], x[1]))
    >>> cache.range_of(x, "sbm") is not None, cache.range_of(x.clone(), "sbm") is not None
    (True, False)
    """

    def __init__(self) -> None:
        self._last: _CachedInput | None = None

    def _entry(self, x: Tensor) -> _CachedInput | None:
        last = self._last  # read once: another thread may replace it
        if last is None or last.reference() is not x or x.grad_fn is None:
            return None
        is_same = x._version == last.version and x.data_ptr() == last.address
        return last if is_same else None

    def range_of(self, x: Tensor, quantizer: Any) -> Range | None:
        """The range of this tensor object, if this quantizer computed it last."""
        entry = self._entry(x)
        return None if entry is None else entry.ranges.get(quantizer)

    def keep_range(self, x: Tensor, quantizer: Any, within: Range) -> None:
        """Keep the range of a tensor; another tensor than the last replaces that."""
        if x.grad_fn is None:
            return
        entry = self._entry(x) or _CachedInput(x)
        entry.ranges[quantizer] = within
        self._last = entry

    def codes_of(self, x: Tensor, key: Any) -> Quantized | None:
        """The rounded tensor, if it was kept under this key and is still alive."""
        entry = self._entry(x)
        if entry is None or key not in entry.encoded:
            return None
        values, codes, scale, offset, half = entry.encoded[key]
        q = Quantized(scale, offset, _alive(values), _alive(codes), half)
        return None if q.values is None and q.codes is None else q

    def keep_codes(self, x: Tensor, key: Any, q: Quantized) -> None:
        """Keep the rounded tensor by weak references to its values and codes."""
        if x.grad_fn is None:
            return
        entry = self._last = self._entry(x) or _CachedInput(x)
        values = None if q.values is None else weakref.ref(q.values)
        codes = None if q.codes is None else weakref.ref(q.codes)
        entry.encoded[key] = values, codes, q.scale, q.offset, q.half

    def saved_of(self, x: Tensor, key: Any) -> Tensor | None:
        """The bytes that another layer saves of this tensor, if they are still alive."""
        entry = self._entry(x)
        return None if entry is None else _alive(entry.saved.get(key))

    def keep_saved(self, x: Tensor, key: Any, saved: Tensor) -> None:
        """Keep the bytes that a layer saves of a tensor by a weak reference."""
        if x.grad_fn is None:
            return
        entry = self._entry(x) or _CachedInput(x)
        entry.saved[key] = weakref.ref(saved)
        self._last = entry

    def __reduce__(self) -> Any:
        return InputCache, ()  # the cache of a copied model starts empty


class _CachedInput:
    """What was computed of one tensor at one version of its contents."""

    def __init__(self, x: Tensor) -> None:
        self.reference, self.version, self.address = weakref.ref(x), x._version, x.data_ptr()
        self.ranges: dict[Any, Range] = {}
        self.encoded: dict[Any, tuple[Any, ...]] = {}  # values, codes, scale, offset, half
        self.saved: dict[Any, weakref.ref[Tensor]] = {}


def _alive(reference: weakref.ref[Tensor] | None) -> Tensor | None:
    return None if reference is None else reference()


class SharedCodes(NamedTuple):
    """Where a layer finds and leaves the codes of its input; key: how it rounds it."""

    cache: InputCache
    key: Any
