"""torch.compile: one graph per kind of format, with eager's numbers and noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from bitcycle.formats import parse_format
from bitcycle.formats.catalogue import Format
from bitcycle.formats.rounding import round_blocks, round_elements

KEY = torch.tensor([123, -456], dtype=torch.int32)
SIGNS = torch.tensor([1.0, -1, -1, 1, 1, 1, -1, 1, -1, -1, 1, -1, 1, 1, 1, -1])


def numbers_of(name: str) -> Tensor:
    found = parse_format(name)
    assert isinstance(found, Format)
    return torch.tensor(found.numbers, dtype=torch.int32)


def check(function: Any, names: list[str], backend: str, *args: Any, **options: Any) -> None:
    """One graph for all formats, and the values of eager code."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    x = torch.randn(50, 70, generator=torch.Generator().manual_seed(0))
    for name in names:
        found = compiled(x, numbers_of(name), *args, **options)
        assert torch.equal(found, function(x, numbers_of(name), *args, **options)), name
    assert counter.frame_count == 1


CASES: dict[str, tuple[Any, list[str], tuple[Any, ...], dict[str, Any]]] = {
    "floats": (round_elements, ["bf16", "fp16"], (), {}),
    "stochastic floats": (round_elements, ["bf16", "fp16"], (KEY,), {}),
    "mx": (
        round_blocks,
        ["mxfp8", "mxfp4", "mxfp6", "mxint8", "mxfp6_e3m2"],
        (),
        {"kind": "mx", "dims": (-1,), "blocks": (32,)},
    ),
    "stochastic mx": (
        round_blocks,
        ["mxfp8", "mxfp4"],
        (),
        {"kind": "mx", "dims": (0,), "blocks": (32,), "scale": "rceil", "key": KEY},
    ),
    "fp8": (round_blocks, ["fp8", "e5m2"], (), {"kind": "fp8", "dims": (), "blocks": ()}),
    "nvfp4": (
        round_blocks,
        ["nvfp4"],
        (),
        {"kind": "nvfp4", "dims": (0,), "blocks": (16,), "signs": SIGNS, "key": KEY},
    ),
    "nvfp4 tiles": (
        round_blocks,
        ["nvfp4"],
        (),
        {"kind": "nvfp4", "dims": (0, 1), "blocks": (16, 16)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_graph_for_all_formats_of_a_kind(case: str) -> None:
    function, names, args, options = CASES[case]
    check(function, names, "aot_eager", *args, **options)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_fused_code_has_the_same_bits(case: str) -> None:
    function, names, args, options = CASES[case]
    check(function, names, "inductor", *args, **options)
