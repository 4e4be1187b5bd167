"""Codes of the affine grid in one byte, two in a byte, and masks of one bit per element."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.ops import codes, fused
from bitcycle.ops.affine import grid_step, round_nearest, round_stochastic, value_range
from bitcycle.ops.codes import decode, nearest_codes, shift_codes, stochastic_codes
from bitcycle.ops.noise import element_index, hash_ints, noise_key, uniform
from bitcycle.ops.packing import keep_positive, pack_nibbles, pack_positive, unpack_nibbles
from tests.toys import randn

# the graph; what C++ makes of it takes long to build
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
KEY = torch.tensor([123, 456], dtype=torch.int32)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    "gaps": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
}


def _grid(x: Tensor, bits: int, keep: tuple[int, ...] = ()) -> tuple[Tensor, Tensor, Tensor]:
    low, high = value_range(x, keep)
    levels = torch.tensor(2.0**bits - 1)
    return grid_step(low, high, levels), low, levels


def _tensor(layout: str, shape: tuple[int, int, int, int] = (2, 6, 5, 4)) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    made = LAYOUTS[layout](x)
    assert torch.equal(made, x)
    return made


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40).map(torch.tensor),
    st.integers(1, 8),
)
def test_codes_multiplied_out_are_the_values_of_the_grid(x: Tensor, bits: int) -> None:
    scale, offset, levels = _grid(x, bits)
    values = round_nearest(x, scale, offset, levels)
    numbers = nearest_codes(x, scale, offset, levels, torch.uint8)
    assert torch.equal(decode(numbers, scale, offset), values)
    shifted = nearest_codes(x, scale, offset, levels, torch.int8)
    assert torch.equal(shifted.int() + 2 ** (bits - 1), numbers.int())
    assert int(numbers.max()) <= 2**bits - 1
    noisy = stochastic_codes(x, scale, offset, levels, KEY)
    assert torch.equal(
        decode(noisy, scale, offset), round_stochastic(x, scale, offset, levels, KEY)
    )


def test_the_grid_and_the_layout_are_kept() -> None:
    for keep in ((), (0,), (1,), (0, 2)):
        for layout in LAYOUTS:
            for carrier in (torch.uint8, torch.int8):
                x = _tensor(layout)
                scale, offset, levels = _grid(x, 4, keep)
                numbers = nearest_codes(x, scale, offset, levels, carrier)
                assert numbers.dtype == carrier
                values = round_nearest(x, scale, offset, levels)
                shifted = numbers.int() + (8 if carrier == torch.int8 else 0)
                assert torch.equal(shifted * scale + offset, values)
                assert torch.equal(decode(numbers, scale, offset), numbers * scale + offset)
                if layout != "gaps":
                    assert numbers.stride() == x.stride()
                    assert decode(numbers, scale, offset).stride() == x.stride()


def test_stochastic_codes_are_those_of_the_values_in_every_layout() -> None:
    for layout in LAYOUTS:
        x = _tensor(layout)
        scale, offset, levels = _grid(x, 3)
        numbers = stochastic_codes(x, scale, offset, levels, KEY)
        assert numbers.dtype == torch.uint8
        values = round_stochastic(x, scale, offset, levels, KEY)
        assert torch.equal(decode(numbers, scale, offset), values)
        assert not torch.equal(numbers, nearest_codes(x, scale, offset, levels, torch.uint8))
        if layout != "gaps":
            assert numbers.stride() == x.stride()


def test_stochastic_codes_take_scales_per_row() -> None:
    x = _tensor("contiguous")
    scale, offset, levels = _grid(x, 3, (0,))
    numbers = stochastic_codes(x, scale, offset, levels, KEY)
    values = round_stochastic(x, scale, offset, levels, KEY)
    assert torch.equal(decode(numbers, scale, offset), values)


def test_values_outside_the_grid_go_to_its_ends() -> None:
    x = torch.tensor([-100.0, 0.4, 0.6, 100.0])
    grid = torch.tensor(1.0), torch.tensor(0.0), torch.tensor(255.0)
    assert nearest_codes(x, *grid, torch.uint8).tolist() == [0, 0, 1, 100]
    assert nearest_codes(3 * x, *grid, torch.uint8).tolist() == [0, 1, 2, 255]
    assert nearest_codes(3 * x, *grid, torch.int8).tolist() == [-128, -127, -126, 127]
    assert stochastic_codes(3 * x, *grid, KEY).tolist()[::3] == [0, 255]


def test_empty_and_0_d_tensors_have_codes_too() -> None:
    for shape in ((0,), (2, 0), ()):
        x = torch.full(shape, 0.3)
        scale, offset, levels = _grid(x, 3)
        for numbers in (
            nearest_codes(x, scale, offset, levels, torch.int8),
            stochastic_codes(x, scale, offset, levels, KEY),
        ):
            assert numbers.shape == x.shape
            assert decode(numbers, scale, offset).shape == x.shape


@given(st.lists(st.integers(0, 255), max_size=20), st.sampled_from((2, 8, 64, 128)))
def test_shifting_goes_from_one_carrier_to_the_other_and_back(
    numbers: list[int], half: int
) -> None:
    bounded = [n % (2 * half) for n in numbers]
    unsigned = torch.tensor(bounded, dtype=torch.uint8)
    signed = shift_codes(unsigned, torch.tensor(float(half)))
    assert signed.dtype == torch.int8
    assert signed.tolist() == [n - half for n in bounded]
    assert torch.equal(shift_codes(signed, torch.tensor(half)), unsigned)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_plain_and_compiled_passes_agree_in_every_bit(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "WARM_UP", 0)
    x = _tensor(layout, (8, 16, 33, 33))  # 139,392 elements: above the threshold as it is
    assert x.numel() >= fused.MIN_ELEMENTS
    one, each = _grid(x, 8), _grid(x, 5, (0,))

    def passes() -> list[Tensor]:
        unsigned = nearest_codes(x, *one, torch.uint8)
        signed = nearest_codes(x, *each, torch.int8)
        return [
            unsigned,
            signed,
            stochastic_codes(x, *one, KEY),
            decode(unsigned, *one[:2]),
            decode(signed, *each[:2]),
        ]

    compiled = passes()
    used = [*codes._nearest.values(), codes._fused_stochastic, codes._fused_decode]
    assert all(function._compiled is not None for function in used)
    monkeypatch.setattr(fused, "MIN_ELEMENTS", 1 << 40)
    for ours, plain in zip(compiled, passes(), strict=True):
        assert torch.equal(ours, plain)
        assert ours.dtype == plain.dtype
        assert ours.stride() == x.stride()


@pytest.mark.parametrize("backend", BACKENDS)
def test_codes_noise_and_packing_are_equal_inside_a_compiled_caller(backend: str) -> None:
    def caller(x: Tensor, clock: Tensor) -> list[Tensor]:
        grid = torch.tensor(0.02), torch.tensor(-2.0), torch.tensor(255.0)
        unsigned = nearest_codes(x, *grid, torch.uint8)
        packed = pack_nibbles(unsigned.flatten() & 15)
        return [
            unsigned,
            nearest_codes(x, *grid, torch.int8),
            stochastic_codes(x, *grid, KEY),
            round_stochastic(x, *grid, KEY),
            shift_codes(unsigned, torch.tensor(128)),
            packed,
            unpack_nibbles(packed, x.numel(), torch.int8),
            uniform(element_index((5000,), x.device), noise_key(clock)),
        ]

    x, clock = _tensor("channels last"), torch.tensor([hash_ints(3), 12, 2], dtype=torch.int32)
    compiled = torch.compile(caller, fullgraph=True, backend=backend)(x, clock)
    assert all(map(torch.equal, compiled, caller(x, clock)))


properties = settings(max_examples=100, derandomize=True, deadline=None)
RANGES = {torch.uint8: (0, 15), torch.int8: (-8, 7)}


@properties
@given(st.sampled_from((torch.uint8, torch.int8)), st.data())
def test_nibbles_come_back(dtype: torch.dtype, data: st.DataObject) -> None:
    low, high = RANGES[dtype]
    numbers = data.draw(st.lists(st.integers(low, high), max_size=33))
    codes = torch.tensor(numbers, dtype=dtype)
    packed = pack_nibbles(codes)
    assert packed.dtype == torch.uint8
    assert packed.numel() == (len(numbers) + 1) // 2
    back = unpack_nibbles(packed, len(numbers), dtype)
    assert back.dtype == dtype
    assert back.tolist() == numbers


def test_every_pair_of_nibbles_comes_back() -> None:
    for dtype in RANGES:
        low, high = RANGES[dtype]
        each = torch.arange(low, high + 1, dtype=dtype)
        codes = torch.cartesian_prod(each, each).flatten()
        packed = pack_nibbles(codes)
        assert packed.unique().numel() == 256
        assert torch.equal(unpack_nibbles(packed, codes.numel(), dtype), codes)


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


@pytest.mark.slow
def test_a_compiled_pass_packs_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "WARM_UP", 0)
    for count in (fused.MIN_ELEMENTS, fused.MIN_ELEMENTS + 5):
        x = randn(count)
        words = pack_positive(x)
        monkeypatch.setattr(fused, "WARM_UP", 1 << 62)
        assert torch.equal(words, pack_positive(x))
        monkeypatch.setattr(fused, "WARM_UP", 0)
