"""Trace one batch: the products of every layer that runs, with their MACs.

`count_macs` runs the model once with hooks. The layers' products come from the counters of
`cost/count.py`. Products that no layer owns, such as `x @ y` in a `forward`, come from the formulas
per operator at the end of this file. `LayerMacs.at_bits` gives the BitOPs of a layer at given bits;
`cost/conventions.py` adds them up over a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bitcycle.calibrate import call_model
from bitcycle.convert import Candidate, find_candidates
from bitcycle.cost.count import (
    FIXED,
    ONES,
    OPERANDS,
    Call,
    MacCounter,
    Product,
    UncountedError,
    add_up,
    find_counter,
    layer_products,
)
from bitcycle.formats.catalogue import Format
from bitcycle.functional_calls import ProductWatch, watch_products
from bitcycle.kernels.base import MATMULS
from bitcycle.nn.layer import QuantizedLayer
from bitcycle.nn.third_party import find_layer
from bitcycle.patterns import named_modules, unwrap
from bitcycle.precision import FORWARD_OPERANDS
from bitcycle.schedules.base import check_count
from bitcycle.snapshot import preserved
from bitcycle.tables import THE_MODEL

_Bits = TypeVar("_Bits", int, int | Format)
_NORMS = {"batch": nn.modules.batchnorm._BatchNorm, "layer": nn.LayerNorm}


def count_macs(model: nn.Module, example_inputs: Any, *, batch_size: int | None = None) -> Trace:
    """Run the model once and count the MACs of a training step on these inputs.

    example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments, on the model's
    device (the meta device works). batch_size: the number of samples in them, by default the
    leading dimension of the first tensor. The model runs in evaluation mode at float32, without a
    backward pass, and does not change. `requires_grad` decides which gradients exist: the first
    layer has no grad_input, a frozen weight no grad_weight. Products that no layer owns (x @ y,
    fused attention) have a row under the module they run in. Layers that only run in training are
    listed as uncounted. Products that gradient checkpointing repeats are counted once.

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


def _batch_size(example_inputs: Any) -> int:
    first = next((leaf for leaf in tree_leaves(example_inputs) if isinstance(leaf, Tensor)), None)
    if first is None or first.dim() == 0:
        raise ValueError("example_inputs have no batch dimension: pass batch_size=")
    return first.shape[0]


# -- the trace ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """Every layer that ran, the batch size, and the names of products that were not counted."""

    layers: tuple[LayerMacs, ...]
    batch_size: int
    uncounted: tuple[str, ...]
    norms: tuple[Norm, ...]
    modules: tuple[nn.Module, ...] = field(repr=False, compare=False)  # of the layers
    order: tuple[str, ...] = field(repr=False, compare=False)  # names of all modules

    @property
    def macs(self) -> dict[str, int]:
        """MACs of the whole batch by matmul."""
        return {m: sum(layer.macs[m] for layer in self.layers) for m in MATMULS}


@dataclass(frozen=True)
class LayerMacs:
    """The products of one layer over the traced batch, summed over its calls."""

    name: str
    kind: str  # the float module's type
    products: tuple[Product, ...]
    _known: dict[tuple[int, ...], Amounts] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def at_bits(self, bits: tuple[int, ...], grad_weight_error: int | None = None) -> Amounts:
        """BitOPs and operand bits at bits of weight, act and error; cached.

        bits: two more are those of weight and act in the backward products. grad_weight_error: the
        bits of the error in grad_weight, by default those in grad_input.
        """
        key = (*bits, bits[2] if grad_weight_error is None else grad_weight_error)
        if key not in self._known:
            self._known[key] = self._add_up(key)
        return self._known[key]

    def _add_up(self, bits: tuple[int, ...]) -> Amounts:
        by_matmul = _by_matmul(bits[:-1], bits[-1])
        pairs = [(product, by_matmul[product.matmul]) for product in self.products]
        bitops = dict.fromkeys(MATMULS, 0)
        for product, at in pairs:
            bitops[product.matmul] += product.bitops(at)
        reads = [product.traffic(at) for product, at in pairs]
        return Amounts(
            bitops=bitops,
            batch_reads=sum(of_batch for of_batch, _ in reads),
            weight_reads=sum(of_weights for _, of_weights in reads),
            uniform_reads=sum(at[role] for product, at in pairs for role in product.roles),
        )

    def macs_at(
        self, bits: Sequence[int | Format], grad_weight_error: int | Format
    ) -> dict[tuple[str, int | Format, int | Format], int]:
        """MACs by matmul and the bits of its two operands, at bits as `at_bits` takes them."""
        by_matmul = _by_matmul(bits, grad_weight_error)
        found: dict[tuple[str, int | Format, int | Format], int] = {}
        for product in self.products:
            at = by_matmul[product.matmul]
            first, second = product.roles
            key = product.matmul, at[first], at[second]
            found[key] = found.get(key, 0) + product.macs
        return found

    @property
    def macs(self) -> dict[str, int]:
        """MACs by matmul; 0 if there is no such product, as for the first layer's grad_input."""
        return {m: sum(p.macs for p in self.products if p.matmul == m) for m in MATMULS}

    @property
    def output(self) -> int:
        """MACs of the forward product."""
        return self.macs["output"]

    @property
    def grad_input(self) -> int:
        """MACs of the input's gradient."""
        return self.macs["grad_input"]

    @property
    def grad_weight(self) -> int:
        """MACs of the weight's gradient; for a MatMul, of the second operand's."""
        return self.macs["grad_weight"]

    @property
    def is_aggregation(self) -> bool:
        """Whether the layer sums over the edges of a graph."""
        return any(role in product.roles for product in self.products for role in (FIXED, ONES))


def _by_matmul(bits: Sequence[_Bits], grad_weight_error: _Bits) -> dict[str, dict[str, _Bits]]:
    """The bits of each role in each matmul; bits: as `LayerMacs.at_bits`."""
    forward: dict[str, _Bits] = dict(zip(OPERANDS, bits, strict=False))
    forward |= {FIXED: 32, ONES: 1}
    backward = {**forward, **dict(zip(FORWARD_OPERANDS, bits[len(OPERANDS) :], strict=False))}
    grad_weight = {**backward, "error": grad_weight_error}
    return {"output": forward, "grad_input": backward, "grad_weight": grad_weight}


class Amounts(NamedTuple):
    """BitOPs and operand bits of a layer's products at some bits, over the traced batch."""

    bitops: dict[str, int]  # by matmul
    batch_reads: int  # operand bits read for activations and errors: they grow with the batch
    weight_reads: int  # operand bits read for weights: they do not
    uniform_reads: int  # operand bits read if every operand had one element


@dataclass(frozen=True)
class Norm:
    """A normalization layer that ran: no products, but the published conventions count it."""

    name: str
    kind: str
    family: str  # "batch" or "layer"
    elements: int  # outputs of all its calls


# -- products of layers ---------------------------------------------------------------------------


class _Tally:
    """Collects the products of a model's layers, call by call."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {entry.name: entry.module for entry in named_modules(model)}
        self.norm_elements: dict[str, int] = {}
        self.candidates = {id(c.module): c for c in find_candidates(model)}
        for e in named_modules(model):  # types with a counter that cannot be converted
            if id(e.module) not in self.candidates and find_counter(type(e.module)) is not None:
                self.candidates[id(e.module)] = Candidate(e.module, e.names, e.parents)
        self.counters: dict[int, MacCounter] = {}
        self.changed: set[int] = set()  # with a forward of their own: the watch checks them
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
        """The modules whose counters count their products."""
        return [c for key, c in self.candidates.items() if key not in self.changed]

    @contextmanager
    def hooked(self, watch: ProductCounter) -> Iterator[None]:
        """Count every call inside the `with`."""

        def count(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self.num_calls[id(module)] += 1
            if id(module) in self.counters:
                watch.is_paused = True  # reading a parametrized weight computes it
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
        """The trace, with layers in the order of the modules."""
        rows: dict[str, tuple[nn.Module, list[Product]]] = {}
        uncounted = []
        for key, candidate in self.candidates.items():
            is_known = key not in self.changed or (
                key in self.counters and watch.discard(candidate.name, self.num_calls[key])
            )
            if is_known and self.products[key]:
                rows[candidate.name] = candidate.module, self.products[key]
            # otherwise the watch or its children count its products
            if (is_known or key in self.failures) and (reason := self._reason(key, candidate)):
                name = candidate.name or THE_MODEL
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
            return None  # its parent counts it, as nn.MultiheadAttention counts out_proj
        whole = (candidate.module, *candidate.parents)
        if any(isinstance(module, torch.jit.ScriptModule) for module in whole):
            return "scripted: its calls cannot be traced"
        return "did not run"


def _kind(module: nn.Module) -> str:
    return (module.float_type if isinstance(module, QuantizedLayer) else type(module)).__name__


def _calls_a_function(kind: type[nn.Module]) -> bool:
    """Whether its products run in a function from elsewhere, which only the watch can count."""
    return any(find_layer(base) is not None for base in kind.__mro__)


def _overrides(module: nn.Module, base: type[nn.Module]) -> bool:
    if isinstance(module, QuantizedLayer):
        return False
    return any(
        name in module.__dict__ or getattr(type(module), name) is not getattr(base, name)
        for name in ("forward", "_conv_forward")
        if hasattr(base, name)
    )


# -- products that no layer owns ------------------------------------------------------------------


class ProductCounter(ProductWatch):  # type: ignore[no-untyped-call]
    """Counts the products that no layer owns, and names those without a formula."""

    def __init__(self) -> None:
        super().__init__()
        self.products: dict[str, list[Product]] = {}  # by the module they ran in
        self.num_counted: dict[str, int] = {}

    def note(self, place: str, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Count a product, or note its name."""
        if name not in FORMULAS:
            super().note(place, name, args, result)
            return
        self.products.setdefault(place, []).extend(FORMULAS[name](args, result))
        self.num_counted[place] = self.num_counted.get(place, 0) + 1

    def discard(self, place: str, num_calls: int) -> bool:
        """Forget what ran in a module, if that was one product per call; return whether it was."""
        named = [found for found in self.found if found[0] == place]
        if sum(self.found[n] for n in named) + self.num_counted.get(place, 0) != num_calls:
            return False
        for found in named:
            del self.found[found]
        self.products.pop(place, None)
        self.num_counted.pop(place, None)
        return True


def matrix_products(a: Tensor, b: Tensor, result: Tensor) -> list[Product]:
    """(..., M, K) x (..., K, N): elements(result) x K MACs.

    >>> products = matrix_products(torch.ones(2, 3), torch.ones(3, 5), torch.ones(2, 5))
    >>> [(p.matmul, p.roles, p.macs) for p in products]
    [('output', ('act', 'act'), 30)]
    """
    if _is_weight(a) and not _is_weight(b):
        a, b = b, a
        macs = result.numel() * a.shape[-2 if a.dim() > 1 else 0]
    else:
        macs = result.numel() * a.shape[-1]
    return _products(a, b, macs, result.numel())


def _products(a: Tensor, b: Tensor, macs: int, num_outputs: int) -> list[Product]:
    return layer_products(
        macs,
        act=a.numel(),
        second=b.numel(),
        error=num_outputs,
        has_grad_input=_needs(a),
        has_grad_weight=_needs(b),
        second_role="weight" if _is_weight(b) else "act",
    )


def _needs(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _is_weight(x: Tensor) -> bool:
    return isinstance(x if x._base is None else x._base, nn.Parameter)


def _two(args: tuple[Any, ...], result: Tensor) -> list[Product]:
    return matrix_products(args[0], args[1], result)


def _add_two(args: tuple[Any, ...], result: Tensor) -> list[Product]:
    return matrix_products(args[1], args[2], result)  # c + a b


def _linear(args: tuple[Any, ...], result: Tensor) -> list[Product]:
    x, weight = args[:2]
    return _products(x, weight, result.numel() * x.shape[-1], result.numel())


def _convolution(args: tuple[Any, ...], result: Tensor) -> list[Product]:
    x, weight = args[:2]
    is_transposed = args[6]
    # (Cout, Cin / groups, *kernel), or (Cin, Cout / groups, *kernel)
    macs = (x if is_transposed else result).numel() * (weight.numel() // weight.shape[0])
    return _products(x, weight, macs, result.numel())


def _attention(args: tuple[Any, ...], result: Any) -> list[Product]:
    """softmax(q k') v: elements(q) x S and rows(q) x S x Ev MACs, for S keys.

    Products that a fused backward pass recomputes are not counted.
    """
    q, k, v = args[:3]
    num_rows, num_keys = q.numel() // q.shape[-1], k.shape[-2]
    scores, mixed = num_rows * num_keys, num_rows * v.shape[-1]
    return [
        *layer_products(
            q.numel() * num_keys, act=q.numel(), second=k.numel(), error=scores, second_role="act",
            has_grad_input=_needs(q), has_grad_weight=_needs(k),
        ),
        *layer_products(
            mixed * num_keys, act=scores, second=v.numel(), error=mixed, second_role="act",
            has_grad_input=_needs(q, k), has_grad_weight=_needs(v),
        ),
    ]  # fmt: skip


Formula = Callable[[tuple[Any, ...], Any], list[Product]]  # of an operator's args and result

FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), _two),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), _add_two),
    "linear": _linear,
    **dict.fromkeys(("convolution", "convolution_overrideable"), _convolution),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
        ),
        _attention,
    ),
}
