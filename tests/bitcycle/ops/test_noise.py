"""The noise hash: deterministic, uniform, and unrelated between layers, steps, calls, neighbours.

Seeds are fixed, so a failure is never chance; the rates in the comments say how likely each test
would have been to fail for ideal random numbers when its seeds were chosen.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from bitcycle.ops.noise import element_index, hash32, hash_ints, noise_key, uniform

NUM_ELEMENTS = 1 << 20


def _key(seed: int = 0, layer: int = 0, step: int = 0, call: int = 1) -> Tensor:
    base = hash_ints(seed, 0, layer)
    return noise_key(torch.tensor([base, step, call], dtype=torch.int32))


def _noise(num: int = NUM_ELEMENTS, **key: int) -> Tensor:
    return uniform(element_index((num,), torch.device("cpu")), _key(**key))


def _chi_square(bins: Tensor, num_bins: int) -> float:
    counts = torch.bincount(bins, minlength=num_bins).double()
    expected = bins.numel() / num_bins
    return float(((counts - expected) ** 2 / expected).sum())


def _correlation(a: Tensor, b: Tensor) -> float:
    """In standard errors: for independent noise a standard normal."""
    a, b = a.double(), b.double()
    return float((a * b).mean() * 12 * math.sqrt(a.numel()))  # var U(-1/2, 1/2) = 1/12


def test_hash_ints_gives_the_same_numbers_on_every_machine() -> None:
    # the values of the first version: saved runs depend on them
    assert hash_ints(0, 0, 0) == 1553331074
    assert hash_ints(1, 2, 3) == -2063602503
    assert hash_ints(-1) == -91421199
    assert hash_ints(2**40) == 1602200245


def test_hash_ints_is_a_signed_32_bit_number_and_heeds_order_and_count() -> None:
    seen = {
        hash_ints(*numbers) for n in range(1, 4) for numbers in itertools.product((0, 1), repeat=n)
    }
    assert len(seen) == 2 + 4 + 8
    assert all(-(2**31) <= number < 2**31 for number in seen)


def test_the_noise_of_a_key_is_fixed() -> None:
    # the values of the first version, exact in binary
    key = noise_key(torch.tensor([hash_ints(0, 0, 0), 5, 1], dtype=torch.int32))
    assert key.tolist() == [-1195293176, 1891700977]
    noise = uniform(torch.arange(4, dtype=torch.int32), key)
    assert noise.tolist() == [
        0.07513687014579773, 0.05580863356590271, 0.4833765923976898, -0.004288464784622192,
    ]  # fmt: skip


def test_hash32_is_arithmetic_modulo_two_to_the_32() -> None:
    def in_python(x: int, k0: int, k1: int) -> int:
        mask = 2**32 - 1
        x = ((x ^ k0) * 0xED5AD4BB + k1) & mask
        x = ((x ^ (x >> 15)) * 0xAC4C1B51) & mask
        x = ((x ^ (x >> 14)) * 0x31848BAB) & mask
        return x - 2**32 if x >= 2**31 else x

    numbers = [0, 1, 2, 1000, 2**31 - 1, -1, -(2**31)]
    keys = torch.tensor([-123456789, 987654321], dtype=torch.int32)
    hashed = hash32(torch.tensor(numbers, dtype=torch.int32), keys[0], keys[1])
    assert hashed.dtype == torch.int32
    assert hashed.tolist() == [
        in_python(n % 2**32, -123456789 % 2**32, 987654321) for n in numbers
    ]  # fmt: skip


def test_noise_takes_two_to_the_24_symmetric_values_strictly_inside_half_a_step() -> None:
    sample = _noise().double()
    assert -0.5 < float(sample.min()) < -0.49999
    assert 0.49999 < float(sample.max()) < 0.5
    places = sample * 2**24 - 0.5  # ..., -1.5, -0.5, 0.5, 1.5, ... in units of 2^-24
    assert torch.equal(places, places.round())


def test_noise_is_uniform() -> None:
    for layer, step, call in ((0, 0, 1), (7, 63_999, 1), (123, 5, 900)):
        noise = _noise(layer=layer, step=step, call=call)
        # chi-square with 255 degrees of freedom, 1e-6 two-sided: [159.4, 381.1]
        assert 159.4 < _chi_square(((noise + 0.5) * 256).long(), 256) < 381.1
        # the last bits of the 24 are as uniform as the first
        assert 159.4 < _chi_square(((noise.double() + 0.5) * 2**24).long() % 256, 256) < 381.1
        # the mean in standard errors, 1e-6 two-sided
        assert abs(float(noise.double().mean()) * math.sqrt(12 * NUM_ELEMENTS)) < 4.9


def test_neighbours_are_unrelated() -> None:
    for lag in (1, 2, 3, 7, 64, 224, 4096):
        noise = _noise(layer=3, step=17)
        assert abs(_correlation(noise[:-lag], noise[lag:])) < 4.9  # 1e-6 two-sided
        cells = ((noise + 0.5) * 64).long()
        # all pairs of 64 x 64 cells; chi-square with 4095 degrees of freedom, 1e-6 two-sided
        pairs = cells[:-lag][:: lag + 1] * 64 + cells[lag:][:: lag + 1]
        if pairs.numel() > 5 * 4096:
            assert 3667 < _chi_square(pairs, 4096) < 4553


def test_layers_steps_calls_and_seeds_are_unrelated() -> None:
    for varied in ("layer", "step", "call", "seed"):
        streams = torch.stack([_noise(1 << 16, **{varied: n}) for n in range(1, 33)]).double()
        scores = streams @ streams.T * 12 / math.sqrt(1 << 16)
        pairs = scores[tuple(torch.triu_indices(32, 32, offset=1))]  # 496 of them
        assert float(pairs.abs().max()) < 6.2  # 496 * 6e-10 < 1e-6
        # and their spread is that of noise: 496 * mean square, 1e-6 two-sided: [357, 665]
        assert 357 < float(pairs.square().sum()) < 665


def test_no_two_calls_of_a_run_share_a_key() -> None:
    steps = torch.arange(20_000, dtype=torch.int32)
    base = torch.full_like(steps, hash_ints(0, 0, 99))
    clocks = [torch.stack([base, steps, torch.full_like(steps, call)]) for call in range(1, 5)]
    keys = torch.cat([noise_key(clock) for clock in clocks], dim=1)  # (2, calls)
    assert torch.unique(keys, dim=1).shape == (2, 80_000)
