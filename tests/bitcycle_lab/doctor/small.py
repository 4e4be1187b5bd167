"""A self-test of seconds: one layer of each kind of product, small sizes, few bits."""

from __future__ import annotations

import pytest

from bitcycle.formats.catalogue import FORMATS
from bitcycle_lab.bench.tune import cases
from bitcycle_lab.doctor import choices, products, rounding

NAMES = ("linear", "matmul", "strided convolution")


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out most layers, sizes and bits; what remains runs as it is."""
    layers = [case for case in products.CASES if case.name in NAMES]
    monkeypatch.setattr(products, "CASES", layers)
    monkeypatch.setattr(products, "GPU_CASES", ())
    few = [8, 16, FORMATS["bf16"], FORMATS["nvfp4"]]
    for module in (choices, products):
        monkeypatch.setattr(module, "all_bits", lambda: few)
    monkeypatch.setattr(products, "integer_bits", lambda: (8,))
    monkeypatch.setattr(rounding, "integer_bits", lambda: (3,))
    monkeypatch.setattr(rounding, "list_formats", lambda: [FORMATS["mxfp4"], FORMATS["fp8"]])
    linear = [case for case in cases() if case.layer == "linear"][:3]
    for module in (choices, products):
        monkeypatch.setattr(module, "cases", lambda device=None: linear)
