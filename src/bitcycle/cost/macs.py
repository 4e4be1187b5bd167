"""What a model multiplies in a training step: MACs per layer and matmul, from one traced batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bitcycle.calibrate import call_model
from bitcycle.candidates import Candidate, find_candidates
from bitcycle.cost.functional import ProductCounter
from bitcycle.cost.preserve import preserved
from bitcycle.cost.product import Call, Counter, Product, UncountedError, add_up, find_counter
from bitcycle.cost.trace import LayerMacs, Norm, Trace
from bitcycle.nn.base import QuantizedLayer
from bitcycle.nn.third_party import find_layer
from bitcycle.patterns import named_modules, unwrap
from bitcycle.products import watch_products

__all__ = ["LayerMacs", "Trace", "check_count", "count_macs"]

_NORMS = {"batch": nn.modules.batchnorm._BatchNorm, "layer": nn.LayerNorm}


def count_macs(model: nn.Module, example_inputs: Any, *, batch_size: int | None = None) -> Trace:
    """Run the model once and count what a training step on these inputs multiplies.

    example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments, on the model's
    device (the meta device will do). batch_size: the number of samples in them; by default the
    leading dimension of the first tensor. The model is left as it was: it runs in evaluation mode
    at float32, without a backward pass. Which gradients exist is read from requires_grad: the
    first layer has no grad_input, a frozen weight no grad_weight. Products that no layer owns
    (x @ y, fused attention) have a row under the module they run in. Layers that only run in
    training are listed as uncounted; products that gradient checkpointing repeats are not counted
    twice.

    >>> trace = count_macs(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.ones(3, 4))
    >>> [(layer.name, layer.macs) for layer in trace.layers]
    [('0', {'output': 96, 'grad_input': 0, 'grad_weight': 96}),
     ('1', {'output': 48, 'grad_input': 48, 'grad_weight': 48})]
    """
    num_samples = _batch_size(example_inputs) if batch_size is None else batch_size
    check_count(num_samples, "batch_size")
    model = unwrap(model)  # a DistributedDataParallel would wait for a backward pass
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise ValueError(f"parameter {name!r} is lazy: run one batch through the model first")
    tally, watch = _Tally(model), ProductCounter()
    with preserved(model), watch_products(model, tally.owners, watch), tally.hooked(watch):
        call_model(model, example_inputs)
    return tally.trace(watch, num_samples)


def check_count(number: object, what: str) -> None:
    """Raise unless the number is a whole one of at least 1."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{what} must be a whole number of at least 1, got {number!r}")


def _batch_size(example_inputs: Any) -> int:
    first = next((leaf for leaf in tree_leaves(example_inputs) if isinstance(leaf, Tensor)), None)
    if first is None or first.dim() == 0:
        raise ValueError("example_inputs do not tell the number of samples: pass batch_size=")
    return first.shape[0]


class _Tally:
    """What the counters say about each call of a model's layers."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {entry.name: entry.module for entry in named_modules(model)}
        self.norm_elements: dict[str, int] = {}
        self.candidates = {id(c.module): c for c in find_candidates(model)}
        for e in named_modules(model):  # types that only the cost knows
            if id(e.module) not in self.candidates and find_counter(type(e.module)) is not None:
                self.candidates[id(e.module)] = Candidate(e.module, e.names, e.parents)
        self.counters: dict[int, Counter] = {}
        self.changed: set[int] = set()  # with a forward of their own: to be checked by the watch
        for key, candidate in self.candidates.items():
            if (found := find_counter(type(candidate.module))) is not None:
                base, self.counters[key] = found
                if _overrides(candidate.module, base):
                    self.changed.add(key)
            elif _calls_a_function(type(candidate.module)):
                self.changed.add(key)
        self.products: dict[int, list[Product]] = {key: [] for key in self.candidates}
        self.num_calls = dict.fromkeys(self.candidates, 0)
        self.failures: dict[int, str] = {}

    @property
    def owners(self) -> list[Candidate]:
        """Modules whose products are theirs to count."""
        return [c for key, c in self.candidates.items() if key not in self.changed]

    @contextmanager
    def hooked(self, watch: ProductCounter) -> Iterator[None]:
        """Count every call inside the `with`."""

        def count(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self.num_calls[id(module)] += 1
            if id(module) in self.counters:
                watch.is_paused = True  # a parametrized weight is computed when it is looked at
                self._count(Call(module, args, kwargs, output))
                watch.is_paused = False

        handles = [
            candidate.module.register_forward_hook(count, with_kwargs=True)
            for candidate in self.candidates.values()
            if not isinstance(candidate.module, torch.jit.ScriptModule)  # takes no hook
        ]
        handles += [
            module.register_forward_hook(self._count_norm(name))
            for name, module in self.modules.items()
            if isinstance(module, tuple(_NORMS.values()))
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _count(self, call: Call) -> None:
        key = id(call.module)
        try:
            self.products[key] += self.counters[key](call)
        except UncountedError as reason:
            self.failures[key] = str(reason)

    def _count_norm(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def count(module: nn.Module, args: Any, output: Any) -> None:
            self.norm_elements[name] = self.norm_elements.get(name, 0) + output.numel()

        return count

    def trace(self, watch: ProductCounter, batch_size: int) -> Trace:
        """The rows in the order of the modules, and everything else by name."""
        rows: dict[str, tuple[nn.Module, list[Product]]] = {}
        uncounted = []
        for key, candidate in self.candidates.items():
            is_known = key not in self.changed or (
                key in self.counters and watch.take_back(candidate.name, self.num_calls[key])
            )
            if is_known and self.products[key]:
                rows[candidate.name] = candidate.module, self.products[key]
            # otherwise its products are the watch's, or its children's
            if (is_known or key in self.failures) and (reason := self._reason(key, candidate)):
                name = candidate.name or "(the model itself)"
                uncounted.append(f"{name} ({_kind(candidate.module)}): {reason}")
        for name, products in watch.products.items():
            rows[name] = self.modules[name], products
        layers, modules = [], []
        for name in (name for name in self.modules if name in rows):
            module, products = rows[name]
            layers.append(LayerMacs(name, _kind(module), add_up(products)))
            modules.append(module)
        return Trace(
            layers=tuple(layers),
            batch_size=batch_size,
            uncounted=(*uncounted, *watch.lines()),
            norms=tuple(self._norms()),
            modules=tuple(modules),
            order=tuple(self.modules),
        )

    def _norms(self) -> Iterator[Norm]:
        for name, elements in self.norm_elements.items():
            module = self.modules[name]
            family = next(f for f, kind in _NORMS.items() if isinstance(module, kind))
            yield Norm(name, _kind(module), family, elements)

    def _reason(self, key: int, candidate: Candidate) -> str | None:
        if key in self.failures:
            return self.failures[key]
        if self.num_calls[key] > 0:
            return None if key in self.counters else "no MAC counter for this type"
        if any(self.num_calls.get(id(parent)) for parent in candidate.parents):
            return None  # read by a layer that was counted: nn.MultiheadAttention's out_proj
        whole = (candidate.module, *candidate.parents)
        if any(isinstance(module, torch.jit.ScriptModule) for module in whole):
            return "scripted: its calls are not seen"
        return "did not run"


def _kind(module: nn.Module) -> str:
    return (module.float_type if isinstance(module, QuantizedLayer) else type(module)).__name__


def _calls_a_function(kind: type[nn.Module]) -> bool:
    """Whether its products run in a function that it is told to call: seen by the watch alone."""
    return any(find_layer(base) is not None for base in kind.__mro__)


def _overrides(module: nn.Module, base: type[nn.Module]) -> bool:
    if isinstance(module, QuantizedLayer):
        return False
    return any(
        name in module.__dict__ or getattr(type(module), name) is not getattr(base, name)
        for name in ("forward", "_conv_forward")
        if hasattr(base, name)
    )
