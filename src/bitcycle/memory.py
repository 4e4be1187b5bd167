"""Measure the memory that a forward pass saves for the backward pass, by layer.

`saved_bytes` leaves the inputs out and separates integer codes from other tensors. `measure_saved`,
which `bitcycle.cost` exports, counts the inputs too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils._pytree import tree_leaves

from bitcycle.calibrate import call_model
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.patterns import named_modules, unwrap
from bitcycle.snapshot import preserved
from bitcycle.tables import THE_MODEL, text_table

_CODES = (torch.uint8, torch.int8)


@dataclass(frozen=True, kw_only=True)
class SavedBytes:
    """Bytes of distinct storages, by the module that saved them first; `str()` is a table."""

    by_layer: dict[str, int]
    codes_by_layer: dict[str, int]  # the part that is codes of a converted layer, with grids
    by_function: dict[str, int]  # further bytes, attributes of custom autograd functions' ctx

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the whole model."""
        return sum(self.by_layer.values()) + sum(self.by_function.values())

    def __str__(self) -> str:
        rows = [
            (name or THE_MODEL, f"{n:,}", f"{self.codes_by_layer.get(name, 0):,}")
            for name, n in self.by_layer.items()
        ]
        rows += [(f"(ctx of {name})", f"{n:,}", "0") for name, n in self.by_function.items()]
        rows.append(("all", f"{self.num_bytes:,}", f"{sum(self.codes_by_layer.values()):,}"))
        return text_table(("layer", "bytes", "of these codes"), rows, right=(1, 2))


def saved_bytes(
    model: nn.Module,
    inputs: Any | Callable[[nn.Module], Any],
    *,
    exclude: Iterable[Tensor] = (),
) -> SavedBytes:
    """Run one forward pass at the current bits and add up the bytes that its graph keeps.

    inputs: a tensor, a tuple of arguments, a dict of keyword arguments, or a function of the model
    that returns the tensor to call backward on, such as a loss. Every storage counts once, with all
    its bytes. Parameters, buffers, the inputs and `exclude` (other tensors that a function uses) do
    not count.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> saved_bytes(model, torch.ones(16, 4)).by_layer  # ReLU's output, saved by two
    {'1': 512}
    """
    excluded = tuple(exclude)
    run = inputs
    if not callable(inputs):
        excluded += tuple(x for x in tree_leaves(inputs) if isinstance(x, Tensor))

        def run(inner: nn.Module) -> Any:
            return call_model(inner, inputs)

    converted = {e.name for e in named_modules(model) if isinstance(e.module, QuantizedLayer)}
    storages = _find_saved_storages(model, run, excluded)
    by_module = [each for each in storages if not each.is_attribute]
    return SavedBytes(
        by_layer=_add_up(by_module),
        codes_by_layer=_add_up(
            each for each in by_module if each.dtype in _CODES and each.place in converted
        ),
        by_function=_add_up(each for each in storages if each.is_attribute),
    )


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Bytes of distinct storages, inputs included, by the module that saved them first.

    `str()` is a table.
    """

    by_layer: dict[str, int]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the whole model."""
        return sum(self.by_layer.values())

    def __str__(self) -> str:
        rows = [(name or THE_MODEL, f"{n:,}") for name, n in self.by_layer.items()]
        rows.append(("all", f"{self.num_bytes:,}"))
        return text_table(("layer", "bytes"), rows, right=(1,))


def measure_saved(model: nn.Module, example_inputs: Any) -> Saved:
    """Run one forward pass at the current bits and add up the bytes that autograd keeps.

    Every storage counts once, with all its bytes, even if several views of it are kept. Inputs
    count; parameters and buffers do not. The model and the random states do not change. A model on
    the meta device works too.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> measure_saved(model, torch.ones(16, 4)).by_layer  # the input; ReLU's output, kept twice
    {'0': 256, '1': 512}
    """
    storages = _find_saved_storages(model, lambda inner: call_model(inner, example_inputs))
    return Saved(by_layer=_add_up(each for each in storages if not each.is_attribute))


class _SavedStorage(NamedTuple):
    """A storage that is kept for the backward pass, and what saved it first."""

    place: str  # the module; for an attribute, the autograd function
    num_bytes: int
    dtype: torch.dtype
    is_attribute: bool = False  # an attribute of a function's ctx, which autograd does not track


def _add_up(storages: Iterable[_SavedStorage]) -> dict[str, int]:
    """Return the bytes by place, in the order of the places' first storages."""
    sums: dict[str, int] = {}
    for each in storages:
        sums[each.place] = sums.get(each.place, 0) + each.num_bytes
    return sums


def _find_saved_storages(
    model: nn.Module, run: Callable[[nn.Module], Any], exclude: tuple[Tensor, ...] = ()
) -> list[_SavedStorage]:
    """The distinct storages that the graph of `run(model)` keeps alive when it returns.

    Parameters, buffers and the tensors of `exclude` are left out. The model and the random states
    do not change.
    """
    model = unwrap(model)
    own = (*model.parameters(), *model.buffers(), *exclude)
    known = {_storage(part) for tensor in own for part in _parts(tensor.detach())}
    saved: list[tuple[str, weakref.ref[_Packed]]] = []
    stack: list[str] = []

    def pack(x: Tensor) -> _Packed:
        # a tensor without a graph is not copied: layers share codes by identity
        packed = _Packed(x if x.grad_fn is None else x.detach())
        saved.append((stack[-1] if stack else "", weakref.ref(packed)))
        return packed

    with (
        preserved(model),
        _tracked(model, stack),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.tensor),
    ):
        output = run(model)
    alive = [(place, packed.tensor, False) for place, ref in saved if (packed := ref()) is not None]
    found = []
    for place, tensor, is_attribute in (*alive, *_attributes(output)):
        for part in _parts(tensor.detach()):
            if _storage(part) not in known:
                known.add(_storage(part))
                num_bytes = part.untyped_storage().nbytes()
                found.append(_SavedStorage(place, num_bytes, part.dtype, is_attribute))
    return found


@dataclass(frozen=True, eq=False)
class _Packed:
    """What autograd stores in place of a saved tensor; freed with the graph."""

    tensor: Tensor


def _attributes(output: Any) -> Iterator[tuple[str, Tensor, bool]]:
    """Tensors that custom autograd functions keep as attributes of their ctx."""
    nodes: list[Any] = [
        x.grad_fn for x in tree_leaves(output) if isinstance(x, Tensor) and x.grad_fn is not None
    ]
    visited = set(nodes)
    while nodes:
        node = nodes.pop()
        if isinstance(node, BackwardCFunction):
            leaves = tree_leaves(list(vars(node).values()))
            yield from ((type(node).__name__, x, True) for x in leaves if isinstance(x, Tensor))
        following = {inner for inner, _ in node.next_functions if inner is not None} - visited
        visited |= following
        nodes += following


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    """The tensors with a storage that x consists of: several if it is sparse."""
    if x.layout is torch.sparse_coo:
        return x._indices(), x._values()
    if x.layout is torch.sparse_csr:
        return x.crow_indices(), x.col_indices(), x.values()
    return (x,)


def _storage(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


@contextmanager
def _tracked(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """Keep the names of the running modules in `stack`."""
    handles = []
    for entry in named_modules(model):
        if isinstance(entry.module, torch.jit.ScriptModule):  # takes no hook
            continue

        def enter(module: nn.Module, args: Any, name: str = entry.name) -> None:
            stack.append(name)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            stack.pop()

        handles.append(entry.module.register_forward_pre_hook(enter))
        handles.append(entry.module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
