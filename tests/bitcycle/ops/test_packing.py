"""4-bit codes two per byte, and masks of one bit per element."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.native import encode
from bitcycle.native.library import INSTRUCTION_SETS, library
from bitcycle.ops import packing
from bitcycle.ops.layout import flat
from bitcycle.ops.packing import (
    drop_again,
    dropout_mask,
    keep_positive,
    pack_codes,
    pack_nibbles,
    pack_positive,
    relu_mask,
    unpack_codes,
    unpack_nibbles,
)
from tests.bitcycle.toys import randn

# the graph; what C++ makes of it takes long to build
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
properties = settings(max_examples=100, derandomize=True)


@properties
@given(st.lists(st.integers(0, 15), max_size=33))
def test_nibbles_come_back(numbers: list[int]) -> None:
    packed = pack_nibbles(torch.tensor(numbers, dtype=torch.uint8))
    assert packed.dtype == torch.uint8
    assert packed.numel() == (len(numbers) + 1) // 2
    back = unpack_nibbles(packed, len(numbers))
    assert back.dtype == torch.uint8
    assert back.tolist() == numbers


def test_every_pair_of_nibbles_comes_back() -> None:
    each = torch.arange(16, dtype=torch.uint8)
    codes = torch.cartesian_prod(each, each).flatten()
    packed = pack_nibbles(codes)
    assert packed.unique().numel() == 256
    assert torch.equal(unpack_nibbles(packed, codes.numel()), codes)


INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-45, -1e-45])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal with the signs of zeros; of NaNs only that they are (torch rewrites those of bf16)."""
    a, b = (torch.where(t.isnan(), NAN, t).flatten() for t in (a, b))
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


def test_special_values_pass_and_are_stopped_as_in_torch() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x, g = (t.flatten().to(dtype) for t in torch.meshgrid(SPECIAL, SPECIAL, indexing="ij"))
        expected = torch.ops.aten.threshold_backward(g, x, 0)
        assert same_bits(keep_positive(pack_positive(x), g), expected)


def test_a_bit_per_element_in_whole_words() -> None:
    for count, num_bytes in ((0, 0), (1, 4), (32, 4), (33, 8), (4096, 512)):
        assert pack_positive(randn(count)).untyped_storage().nbytes() == num_bytes


def _pack_and_keep(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    words = pack_positive(x)
    return words, keep_positive(words, g)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_packs_and_reads_the_same_bits(backend: str) -> None:
    compiled = torch.compile(_pack_and_keep, fullgraph=True, backend=backend)
    x, g = torch.cat([SPECIAL, randn(1000)]), torch.cat([SPECIAL.flip(0), randn(1000, seed=2)])
    (words, kept), (plain_words, plain) = compiled(x, g), _pack_and_keep(x, g)
    assert torch.equal(words, plain_words)
    assert same_bits(kept, plain)


@pytest.mark.parametrize("way", ["native", "plain"])
def test_a_relu_and_its_mask_are_torchs_in_every_layout(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "plain":
        monkeypatch.setattr(encode, "_functions", lambda: None)
    x = torch.cat([SPECIAL, randn(2 * 3 * 5 * 7 - len(SPECIAL))]).view(2, 3, 5, 7)
    for turned in (x, x.to(memory_format=torch.channels_last), x.transpose(1, 3), x[..., ::2]):
        output, words, stride = relu_mask(turned)
        assert same_bits(output, turned.relu())
        assert torch.equal(words, pack_positive(output))
        g = torch.empty_like(output).copy_(randn(*output.shape, seed=1))
        kept = keep_positive(words, g)
        assert same_bits(kept, torch.ops.aten.threshold_backward(g, output, 0))
        assert kept.stride() == g.stride()


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda x: x,
    "channels-last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(2, 0, 3, 1),
    "with gaps": lambda x: x[..., ::2],
    "with gaps, permuted": lambda x: x[..., ::2].permute(3, 1, 0, 2),
}
tensors = {
    "shape": st.tuples(*[st.integers(0, 9)] * 4),
    "layout": st.sampled_from(sorted(LAYOUTS)),
    "dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    "seed": st.integers(0, 99),
}


def some(shape: tuple[int, ...], layout: str, dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers of any size and sign, among them special ones."""
    numbers = randn(*shape, seed=seed)
    is_special = randn(*shape, seed=seed + 1) > 0.7
    special = SPECIAL[torch.arange(numbers.numel()).add(seed) % len(SPECIAL)].view(shape)
    return LAYOUTS[layout](torch.where(is_special, special, numbers).to(dtype))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@properties
@given(**tensors, inplace=st.booleans(), num_threads=st.integers(1, 2))
def test_a_relu_and_its_gradient_are_torchs_to_the_bit(
    shape: tuple[int, ...],
    layout: str,
    dtype: torch.dtype,
    seed: int,
    inplace: bool,
    num_threads: int,
) -> None:
    x, g = some(shape, layout, dtype, seed), some(shape, layout, dtype, seed + 200)
    expected = x.relu()
    with threads(num_threads):
        output, words, stride = relu_mask(x, inplace=inplace)
        assert stride is not None
        assert (output is x) == inplace
        assert same_bits(output, expected)
        assert torch.equal(words, packing._pack_positive(torch.relu(flat(output))))
        turned = torch.empty_strided(g.shape, stride, dtype=dtype).copy_(g)
        expected = torch.ops.aten.threshold_backward(turned, expected, 0)
        assert same_bits(keep_positive(words, turned), expected)
        assert same_bits(keep_positive(words, turned, inplace=True), expected)


@properties
@given(**tensors, inplace=st.booleans(), num_threads=st.integers(1, 2), p=st.floats(0.01, 0.99))
def test_a_dropout_draws_and_gives_what_torchs_does(
    shape: tuple[int, ...],
    layout: str,
    dtype: torch.dtype,
    seed: int,
    inplace: bool,
    num_threads: int,
    p: float,
) -> None:
    x, g = some(shape, layout, dtype, seed), some(shape, layout, dtype, seed + 200)
    if x.numel() == 0:
        return
    with threads(num_threads):
        torch.manual_seed(seed)
        expected = F.dropout(x, p)
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        noise = F.dropout(torch.ones_like(x), p)
        torch.manual_seed(seed)
        output, words, stride = dropout_mask(x, p, inplace=inplace)
        assert stride is not None
        assert torch.equal(torch.get_rng_state(), state)
        assert (output is x) == inplace
        assert same_bits(output, expected)
        assert torch.equal(words, packing._pack_positive(flat(noise)))
        for error in (g, torch.empty_strided(g.shape, stride, dtype=dtype).copy_(g)):
            assert same_bits(drop_again(words, stride, error, p), error * noise)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_depend_on_no_instruction_set_and_no_number_of_threads(dtype: torch.dtype) -> None:
    found = library()
    if found is None:
        pytest.skip("no native library")
    x, g = some((7, 11, 61, 37), "row-major", dtype, 1), randn(7, 11, 61, 37, seed=2).to(dtype)

    def everything() -> list[Tensor]:
        relu = relu_mask(x)
        torch.manual_seed(0)
        dropped = dropout_mask(x, 0.3)
        made = [
            relu.output, relu.words, keep_positive(relu.words, g),
            dropped.output, dropped.words, drop_again(dropped.words, x.stride(), g, 0.3),
        ]  # fmt: skip
        return [each.view(-1).view(torch.uint8) for each in made]

    best, first = found.bitcycle_tiles(None), everything()
    for name in INSTRUCTION_SETS:
        if found.bitcycle_tiles(name.encode()) is not None:
            for num_threads in (1, 2, 3):
                with threads(num_threads):
                    assert all(map(torch.equal, first, everything()))
    assert found.bitcycle_tiles(best) == best


def test_every_bfloat16_has_torchs_relu_and_products() -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    for size in (2**16, 31):  # in vectors, and one by one
        for part in x.split(size):
            output, words, stride = relu_mask(part)
            assert same_bits(output, part.relu())
            ones = torch.ones_like(part)
            assert same_bits(
                keep_positive(words, ones), torch.ops.aten.threshold_backward(ones, part, 0)
            )
    for p in (0.1, 0.5, 0.77):
        torch.manual_seed(0)
        output, words, stride = dropout_mask(x, p)
        torch.manual_seed(0)
        assert same_bits(output, F.dropout(x, p))


@pytest.mark.parametrize("way", ["native", "plain"])
def test_codes_come_back_in_their_layout(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "plain":
        monkeypatch.setattr(encode, "_functions", lambda: None)
    x = torch.arange(2 * 3 * 5 * 7).remainder(16).to(torch.uint8).view(2, 3, 5, 7)
    for codes in (x, x.to(memory_format=torch.channels_last), x.transpose(0, 3), x[:0]):
        packed = pack_codes(codes)
        assert packed.shape == ((codes.numel() + 1) // 2,)
        back = unpack_codes(packed, codes.shape, codes.stride())
        assert torch.equal(back, codes)
        assert back.stride() == codes.stride()
