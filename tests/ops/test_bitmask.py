"""One bit per element, packed and read back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitcycle.ops import fused
from bitcycle.ops.bitmask import keep_positive, pack_positive
from tests.toys import randn

INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-45, -1e-45])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal with the signs of zeros; of NaNs only that they are (torch rewrites those of bf16)."""
    a, b = (torch.where(t.isnan(), NAN, t) for t in (a, b))
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@given(count=st.integers(0, 300), seed=st.integers(0, 99))
def test_what_passes_is_what_torchs_relu_passes(count: int, seed: int) -> None:
    x, g = randn(count, seed=seed), randn(count, seed=seed + 100)
    expected = torch.ops.aten.threshold_backward(g, x, 0)
    assert same_bits(keep_positive(pack_positive(x), g), expected)


def test_every_element_has_a_bit_of_its_own() -> None:
    for hot in range(70):  # more than two words, and a part of one
        x = torch.zeros(70)
        x[hot] = 1
        assert torch.equal(keep_positive(pack_positive(x), torch.ones(70)), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_special_values_pass_and_are_stopped_as_in_torch(dtype: torch.dtype) -> None:
    x, g = (t.flatten().to(dtype) for t in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
    expected = torch.ops.aten.threshold_backward(g, x, 0)
    assert same_bits(keep_positive(pack_positive(x), g), expected)


@pytest.mark.parametrize(("count", "num_bytes"), [(0, 0), (1, 4), (32, 4), (33, 8), (4096, 512)])
def test_a_bit_per_element_in_whole_words(count: int, num_bytes: int) -> None:
    assert pack_positive(randn(count)).untyped_storage().nbytes() == num_bytes


def test_compiled_code_packs_and_reads_the_same_bits() -> None:
    pack, keep = (torch.compile(f, fullgraph=True) for f in (pack_positive, keep_positive))
    x, g = torch.cat([SPECIAL, randn(1000)]), torch.cat([SPECIAL.flip(0), randn(1000, seed=2)])
    assert torch.equal(pack(x), pack_positive(x))
    assert same_bits(keep(pack(x), g), keep_positive(pack_positive(x), g))


@pytest.mark.slow
def test_a_compiled_pass_packs_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "WARM_UP", 0)
    for count in (fused.MIN_ELEMENTS, fused.MIN_ELEMENTS + 5):
        x = randn(count)
        words = pack_positive(x)
        monkeypatch.setattr(fused, "WARM_UP", 1 << 62)
        assert torch.equal(words, pack_positive(x))
        monkeypatch.setattr(fused, "WARM_UP", 0)
