"""What a layer costs beside its arithmetic: calls of Python functions and of the library."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bitcycle as bc
from bitcycle.native.library import library

from .layers import library_calls

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

ROOT = str(Path(bc.__file__).parent)
LAYERS = {
    "linear": (lambda: nn.Linear(24, 16), (8, 24)),
    "conv": (lambda: nn.Conv2d(8, 16, 3, padding=1), (2, 8, 6, 6)),
}
every_layer = pytest.mark.parametrize("kind", LAYERS)


@contextmanager
def python_calls() -> Iterator[Counter[str]]:
    """Calls of this package's functions, comprehensions and generators included."""
    calls: Counter[str] = Counter()

    def count(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            calls[f"{code.co_filename.removeprefix(ROOT)}:{code.co_qualname}"] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def warm_layer(kind: str, kernel: str, quantizer: Any = "sbm") -> tuple[nn.Module, Tensor]:
    """A layer after two steps of training, and an input."""
    make, shape = LAYERS[kind]
    torch.manual_seed(0)
    made = bc.quantize_model(make(), quantizer, kernel=kernel)
    bc.set_precision(made, "w8a8e8")
    x = torch.randn(shape, requires_grad=True)
    for _ in range(2):
        step(made, x)
    return made, x


def step(module: nn.Module, x: Tensor) -> None:
    module(x).sum().backward()


@every_layer
@pytest.mark.parametrize(("kernel", "limit"), [("native", 60), ("simulate", 120)])
def test_a_step_calls_few_functions_of_ours(kind: str, kernel: str, limit: int) -> None:
    made, x = warm_layer(kind, kernel)
    with python_calls() as calls:
        step(made, x)
    assert 0 < calls.total() <= limit, calls.most_common()


@every_layer
def test_a_new_bit_width_costs_no_further_call(kind: str) -> None:
    made, x = warm_layer(kind, "native")
    counts = []
    for bits in (8, 7, 5):  # below the most bits so far: the plan stays
        bc.set_precision(made, f"w{bits}a{bits}e{bits}")
        with python_calls() as calls:
            step(made, x)
        counts.append(calls)
    assert counts[0] == counts[1] == counts[2]


@every_layer
def test_native_calls_the_library_once_for_each_direction(kind: str) -> None:
    made, x = warm_layer(kind, "native")
    with library_calls() as calls:
        step(made, x)
    assert calls == ["bitcycle_forward", "bitcycle_backward"]
    with library_calls() as calls, torch.no_grad():
        made.eval()(x)
    assert calls == ["bitcycle_forward"]


def test_the_spies_see_every_call_of_separate_products() -> None:
    rules = bc.quantizers.SBM(grad_input_weight="per_input_channel")
    made, x = warm_layer("linear", "native", rules)
    with library_calls() as calls:
        step(made, x)
    assert calls.count("bitcycle_gemm") == 3
    assert calls.count("bitcycle_quantize") == 4  # input, weight on two grids, error
    assert {"bitcycle_count_up", "bitcycle_observe", "bitcycle_noise_key"} < set(calls)
