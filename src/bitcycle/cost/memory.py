"""Bytes that a training step keeps for its backward pass: measured, not estimated."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils._pytree import tree_leaves

from bitcycle.calibrate import call_model
from bitcycle.cost.trace import preserved
from bitcycle.patterns import named_modules, unwrap
from bitcycle.tables import text_table


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Bytes kept for backward, by the module whose forward kept them first; `str()` is a table."""

    by_layer: dict[str, int]

    @property
    def num_bytes(self) -> int:
        """Of the whole model."""
        return sum(self.by_layer.values())

    def __str__(self) -> str:
        rows = [(name or "(the model itself)", f"{n:,}") for name, n in self.by_layer.items()]
        rows.append(("all", f"{self.num_bytes:,}"))
        return text_table(("layer", "bytes"), rows, right=(1,))


def measure_saved(model: nn.Module, example_inputs: Any) -> Saved:
    """Run one forward pass as it is, at the present bits, and add up what autograd keeps.

    Every storage counts once, with all its bytes, however many views of it are kept. Parameters
    and buffers exist anyway and are left out; the inputs are not. The model and the random states
    are left as they were. The meta device will do: storages have their sizes there too.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> measure_saved(model, torch.ones(16, 4)).by_layer  # the input; ReLU's output, kept twice
    {'0': 256, '1': 512}
    """
    by_layer: dict[str, int] = {}
    for kept in kept_for_backward(model, lambda inner: call_model(inner, example_inputs)):
        if not kept.is_attribute:
            by_layer[kept.place] = by_layer.get(kept.place, 0) + kept.num_bytes
    return Saved(by_layer=by_layer)


class Kept(NamedTuple):
    """A storage that is kept for the backward pass, and who kept it first."""

    place: str  # the module; of an attribute, the autograd function
    num_bytes: int
    dtype: torch.dtype
    is_attribute: bool = False  # hung on an autograd function's ctx, which autograd cannot see


def kept_for_backward(
    model: nn.Module, run: Callable[[nn.Module], Any], exclude: tuple[Tensor, ...] = ()
) -> list[Kept]:
    """Every storage that the graph of `run(model)` holds when it returns, once.

    Parameters, buffers and the tensors of `exclude` are left out, and so is what was saved on the
    way and let go again. The model and the random states are left as they were.
    """
    model = unwrap(model)
    own = (*model.parameters(), *model.buffers(), *exclude)
    seen = {_storage(part) for tensor in own for part in _parts(tensor.detach())}
    saved: list[tuple[str, weakref.ref[_Held]]] = []
    stack: list[str] = []

    def pack(x: Tensor) -> _Held:
        # the very tensor where there is no graph behind it: layers share codes by identity
        held = _Held(x if x.grad_fn is None else x.detach())
        saved.append((stack[-1] if stack else "", weakref.ref(held)))
        return held

    with (
        preserved(model),
        _tracked(model, stack),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor),
    ):
        output = run(model)
    alive = [(place, held.tensor, False) for place, ref in saved if (held := ref()) is not None]
    found = []
    for place, tensor, is_attribute in (*alive, *_attributes(output)):
        for part in _parts(tensor.detach()):
            if _storage(part) not in seen:
                seen.add(_storage(part))
                num_bytes = part.untyped_storage().nbytes()
                found.append(Kept(place, num_bytes, part.dtype, is_attribute))
    return found


@dataclass(frozen=True, eq=False)
class _Held:
    """What autograd holds in place of a saved tensor; gone when the graph is."""

    tensor: Tensor


def _attributes(output: Any) -> Iterator[tuple[str, Tensor, bool]]:
    """Tensors hung on the ctx of custom autograd functions."""
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
    """The tensors with a storage that x consists of: several when it is sparse."""
    if x.layout is torch.sparse_coo:
        return x._indices(), x._values()
    if x.layout is torch.sparse_csr:
        return x.crow_indices(), x.col_indices(), x.values()
    return (x,)


def _storage(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


@contextmanager
def _tracked(model: nn.Module, stack: list[str]) -> Iterator[None]:
    """`stack` holds the names of the modules that are running."""
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
