"""Watching a model run once: which products are computed that no module of it owns."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bitcycle.assign import at_precision
from bitcycle.candidates import Candidate
from bitcycle.nn.base import QuantizedLayer
from bitcycle.patterns import named_modules

# aten operators that multiply: what matmul, einsum, attention and convolutions become
PRODUCTS = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "convolution",
    "convolution_overrideable", "_convolution", "linear", "_int_mm", "_scaled_mm",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math", "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd", "_trilinear", "mkldnn_rnn_layer", "_sparse_mm",
    "_sparse_addmm", "mkldnn_linear", "mkldnn_convolution",
})  # fmt: skip


class ProductWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every product that runs while no owning module is on the stack."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners: set[int] = set()  # ids of modules
        self.stack: list[tuple[int, str]] = []
        self.found: dict[tuple[str, str], int] = {}  # (module name, operator) -> times
        self.is_paused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        result = func(*args, **(kwargs or {}))
        is_owned = any(module in self.owners for module, _ in self.stack)
        if name in PRODUCTS and not is_owned and not self.is_paused:
            self.note(self.stack[-1][1] if self.stack else "", name, args, result)
        return result

    def note(self, place: str, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Take down one product: the module it ran in, the operator, its operands and result."""
        self.found[place, name] = self.found.get((place, name), 0) + 1

    def lines(self) -> list[str]:
        """What was found, one line per module and operator: 'attention: bmm x2'."""
        return [
            f"{place or '(the model itself)'}: {operator}" + (f" x{count}" if count > 1 else "")
            for (place, operator), count in self.found.items()
        ]


@contextmanager
def watch_products(
    model: nn.Module, owners: Iterable[Candidate], watch: ProductWatch | None = None
) -> Iterator[ProductWatch]:
    """The model in evaluation mode at float32, every product inside the `with` noted."""
    ids: set[int] = set()
    for owner in owners:
        ids.add(id(owner.module))  # what a scripted module runs inside is not seen as a call
        ids |= {id(p) for p in owner.parents if isinstance(p, torch.jit.ScriptModule)}
    watch = ProductWatch() if watch is None else watch
    watch.owners = ids
    with _evaluation(model), _tracked(model, watch), watch:
        yield watch


@contextmanager
def _tracked(model: nn.Module, watch: ProductWatch) -> Iterator[None]:
    names = {id(entry.module): entry.name for entry in named_modules(model)}

    def enter(module: nn.Module, args: Any) -> None:
        watch.stack.append((id(module), names.get(id(module), "")))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        watch.stack.pop()

    # for every module at once: a scripted one takes no hook of its own
    hooks = nn.modules.module
    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using `torch.compile")  # it sees our hooks
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and float32 for one traced call: nothing is observed or updated."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        if any(isinstance(module, QuantizedLayer) for module in model.modules()):
            with at_precision(model, "fp32"):
                yield
        else:
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
