"""Calls in a forward pass that no module owns: products, and activations that keep a float copy.

`watch_products` records products by operator, in a `ProductWatch`. A `CallWatch` records the calls
as they are written: `x @ y`, `F.linear(...)`, `F.relu(x)`.
"""

from __future__ import annotations

import dis
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from bitcycle.convert import Candidate
from bitcycle.model_precision import at_precision, is_converted
from bitcycle.patterns import named_modules
from bitcycle.tables import THE_MODEL

# aten operators that multiply: matmul, einsum, attention and convolutions call these
PRODUCT_OPERATORS = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "convolution",
    "convolution_overrideable", "_convolution", "linear", "_int_mm", "_scaled_mm",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math", "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd", "_trilinear", "mkldnn_rnn_layer", "_sparse_mm",
    "_sparse_addmm", "mkldnn_linear", "mkldnn_convolution", "_grouped_mm", "_scaled_grouped_mm",
    "flex_attention",
})  # fmt: skip

# functions of which the module keeps one bit per element for the backward pass, not a float copy
MASKED_FUNCTIONS: dict[type[nn.Module], tuple[Any, ...]] = {
    nn.ReLU: (F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_),
    nn.Dropout: (F.dropout, torch.dropout, torch.dropout_),
}


class ProductWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every product that runs outside the `owners`: modules that own their products."""

    supports_higher_order_operators = True  # flex_attention

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners: set[int] = set()  # ids of modules
        self.activation_modules: set[int] = set()  # ids of nn.ReLU and nn.Dropout
        self.stack: list[tuple[int, str]] = []
        self.found: dict[tuple[str, str], int] = {}  # (module name, operator) -> times
        self.is_paused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "overloadpacket", func).__name__  # flex_attention has no overloads
        result = func(*args, **(kwargs or {}))
        is_owned = any(module in self.owners for module, _ in self.stack)
        if name in PRODUCT_OPERATORS and not is_owned and not self.is_paused:
            self.note(self.stack[-1][1] if self.stack else "", name, args, result)
        return result

    def note(self, place: str, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Record one product: the module it ran in, the operator, its operands and result."""
        self.found[place, name] = self.found.get((place, name), 0) + 1

    def lines(self) -> list[str]:
        """One line per module and operator: 'attention: bmm x2'."""
        return [
            f"{place or THE_MODEL}: {operator}" + (f" x{count}" if count > 1 else "")
            for (place, operator), count in self.found.items()
        ]


class CallWatch(ProductWatch):  # type: ignore[no-untyped-call]
    """Records the calls that multiply as the source has them: `@` and not the operators below."""

    def __init__(self) -> None:
        super().__init__()
        self.functions = _FunctionWatch(self)
        self.calls: dict[tuple[str, str], Calls] = {}  # products, by (module name, call)
        self.activations: dict[tuple[str, str], ActivationCalls] = {}  # by the same

    def __enter__(self) -> CallWatch:
        self.functions.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.functions.__exit__(*error)  # type: ignore[no-untyped-call]

    def note(self, place: str, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Record the call that this operator is part of."""
        frame, function = _calling_frame(), self.functions.current
        call = name if function is None else _call_name(function, frame)
        calls = self.calls.setdefault((place, call), Calls())
        calls.numbers.add(self.functions.num_calls if function else -1 - len(calls.numbers))
        if frame is not None:
            calls.where[_place(frame)] = None

    def note_activation(self, function: Any, arguments: Any, result: Any) -> None:
        """Record a function that keeps more for the backward pass than its module would.

        arguments: all of the call after the first. Dropout with p = 0 keeps nothing. `training` is
        False in an audit, and says nothing.
        """
        kind = next((kind for kind, each in MASKED_FUNCTIONS.items() if function in each), None)
        is_owned = any(module in self.owners for module, _ in self.stack)
        if kind is nn.Dropout and 0.0 in arguments[:1]:
            return
        if kind is None or is_owned or self.is_paused or not isinstance(result, Tensor):
            return
        if self.stack and self.stack[-1][0] in self.activation_modules:
            return  # nn.ReLU calls F.relu
        frame = _calling_frame()
        place = self.stack[-1][1] if self.stack else ""
        call = _call_name(function, frame)
        calls = self.activations.setdefault((place, call), ActivationCalls(kind=kind))
        calls.num_calls += 1
        calls.num_bytes += result.numel() * result.element_size()
        calls.num_mask_bytes += -(-result.numel() // 8)
        if frame is not None:
            calls.where[_place(frame)] = None


@dataclass
class Calls:
    """The calls of one product in one module."""

    numbers: set[int] = field(default_factory=set)  # one call may run many operators
    where: dict[str, None] = field(default_factory=dict)  # an ordered set: "model.py:12"


@dataclass
class ActivationCalls:
    """The calls of one functional activation in one module, and the bytes that they keep."""

    kind: type[nn.Module]  # the module that keeps less
    num_calls: int = 0
    num_bytes: int = 0
    num_mask_bytes: int = 0  # what the module keeps
    where: dict[str, None] = field(default_factory=dict)


class _FunctionWatch(TorchFunctionMode):
    """Knows the function of torch that runs now, as it was called from outside of torch."""

    def __init__(self, watch: CallWatch) -> None:
        super().__init__()
        self.watch = watch
        self.current: Any = None
        self.num_calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        outer, self.current = self.current, func
        self.num_calls += 1
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            self.current = outer
        named = kwargs or {}
        given = ([named["p"]] if "p" in named else []) + [*args[1:]]
        self.watch.note_activation(func, given, result)
        return result


_TORCH = os.path.dirname(torch.__file__) + os.sep


def _calling_frame() -> FrameType | None:
    """The innermost frame outside of torch and of this file."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH):
            return frame
        frame = frame.f_back
    return None


def _place(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _call_name(function: Any, frame: FrameType | None) -> str:
    """The call as it is written: "@", "F.linear", "torch.bmm" or "Tensor.bmm"."""
    name = getattr(function, "__name__", "")
    if frame is not None and name.strip("_") in ("matmul", "rmatmul", "imatmul"):
        instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if instruction.startswith("BINARY"):
            return "@"
    for space, prefix in ((F, "F"), (torch, "torch"), (Tensor, "Tensor")):
        if getattr(space, name, None) is function:
            return f"{prefix}.{name}"
    return resolve_name(function) or name or str(function)


@contextmanager
def watch_products(
    model: nn.Module, owners: Iterable[Candidate], watch: ProductWatch | None = None
) -> Iterator[ProductWatch]:
    """Record the products inside the `with`; the model is in evaluation mode at float32."""
    ids: set[int] = set()
    for owner in owners:
        ids.add(id(owner.module))
        # calls inside a scripted module are not visible
        ids |= {id(p) for p in owner.parents if isinstance(p, torch.jit.ScriptModule)}
    watch = ProductWatch() if watch is None else watch
    watch.owners = ids
    kinds = tuple(MASKED_FUNCTIONS)
    watch.activation_modules = {id(m) for m in model.modules() if isinstance(m, kinds)}
    with _evaluation(model), _tracked(model, watch), watch:
        yield watch


@contextmanager
def _tracked(model: nn.Module, watch: ProductWatch) -> Iterator[None]:
    names = {id(entry.module): entry.name for entry in named_modules(model)}

    def enter(module: nn.Module, args: Any) -> None:
        watch.stack.append((id(module), names.get(id(module), "")))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        watch.stack.pop()

    # global hooks: a scripted module takes none of its own
    hooks = nn.modules.module
    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using `torch.compile")  # about the hooks
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and float32: nothing is observed or updated."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        if is_converted(model):
            with at_precision(model, "fp32"):
                yield
        else:
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
