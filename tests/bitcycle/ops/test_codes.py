"""Codes of the affine grid: one byte per element."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitcycle.ops.affine import grid_step, round_nearest, round_stochastic, value_range
from bitcycle.ops.codes import decode, nearest_codes, stochastic_codes
from bitcycle.ops.noise import element_index, hash_ints, noise_key, uniform
from bitcycle.ops.packing import pack_nibbles, unpack_nibbles

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


@settings(max_examples=100, derandomize=True)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40).map(torch.tensor),
    st.integers(1, 8),
)
def test_codes_multiplied_out_are_the_values_of_the_grid(x: Tensor, bits: int) -> None:
    scale, offset, levels = _grid(x, bits)
    values = round_nearest(x, scale, offset, levels)
    numbers = nearest_codes(x, scale, offset, levels)
    assert torch.equal(decode(numbers, scale, offset), values)
    assert int(numbers.max()) <= 2**bits - 1
    noisy = stochastic_codes(x, scale, offset, levels, KEY)
    assert torch.equal(
        decode(noisy, scale, offset), round_stochastic(x, scale, offset, levels, KEY)
    )


def test_the_grid_and_the_layout_are_kept() -> None:
    for keep in ((), (0,), (1,), (0, 2)):
        for layout in LAYOUTS:
            x = _tensor(layout)
            scale, offset, levels = _grid(x, 4, keep)
            numbers = nearest_codes(x, scale, offset, levels)
            assert numbers.dtype == torch.uint8
            assert torch.equal(numbers * scale + offset, round_nearest(x, scale, offset, levels))
            values = decode(numbers, scale, offset)
            assert torch.equal(values, numbers * scale + offset)
            if layout != "gaps":
                assert numbers.stride() == values.stride() == x.stride()


def test_stochastic_codes_are_those_of_the_values_in_every_layout() -> None:
    for layout in LAYOUTS:
        x = _tensor(layout)
        scale, offset, levels = _grid(x, 3)
        numbers = stochastic_codes(x, scale, offset, levels, KEY)
        assert numbers.dtype == torch.uint8
        values = round_stochastic(x, scale, offset, levels, KEY)
        assert torch.equal(decode(numbers, scale, offset), values)
        assert not torch.equal(numbers, nearest_codes(x, scale, offset, levels))
        if layout != "gaps":
            assert numbers.stride() == x.stride()


def test_values_outside_the_grid_go_to_its_ends() -> None:
    x = torch.tensor([-100.0, 0.4, 0.6, 100.0])
    grid = torch.tensor(1.0), torch.tensor(0.0), torch.tensor(255.0)
    assert nearest_codes(x, *grid).tolist() == [0, 0, 1, 100]
    assert nearest_codes(3 * x, *grid).tolist() == [0, 1, 2, 255]
    assert stochastic_codes(3 * x, *grid, KEY).tolist()[::3] == [0, 255]


@pytest.mark.parametrize("backend", BACKENDS)
def test_codes_noise_and_packing_are_equal_inside_a_compiled_caller(backend: str) -> None:
    def caller(x: Tensor, clock: Tensor) -> list[Tensor]:
        grid = torch.tensor(0.02), torch.tensor(-2.0), torch.tensor(255.0)
        codes = nearest_codes(x, *grid)
        packed = pack_nibbles(codes.flatten() & 15)
        return [
            codes,
            stochastic_codes(x, *grid, KEY),
            round_stochastic(x, *grid, KEY),
            packed,
            unpack_nibbles(packed, x.numel()),
            uniform(element_index((5000,), x.device), noise_key(clock)),
        ]

    x, clock = _tensor("channels last"), torch.tensor([hash_ints(3), 12, 2], dtype=torch.int32)
    compiled = torch.compile(caller, fullgraph=True, backend=backend)(x, clock)
    assert all(map(torch.equal, compiled, caller(x, clock)))
