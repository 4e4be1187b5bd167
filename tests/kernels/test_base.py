"""The kernel boundary: names, descriptions, and what each of them promises."""

from __future__ import annotations

import pytest

from bitcycle.kernels import KERNELS, make_kernel
from bitcycle.kernels.base import MATMULS


def test_every_kernel_knows_its_name() -> None:
    for name, kernel in KERNELS.items():
        assert kernel.name == name
        assert make_kernel(name) is kernel


def test_there_are_four() -> None:
    assert set(KERNELS) == {"simulate", "dequantize", "bf16", "int8"}


def test_the_products_have_the_names_of_a_kernel_s_methods() -> None:
    assert MATMULS == ("output", "grad_input", "grad_weight")
    for _, kernel in KERNELS.items():
        assert all(callable(getattr(kernel, product)) for product in MATMULS)


def test_only_simulate_takes_values() -> None:
    assert [name for name in KERNELS if not KERNELS[name].takes_codes] == ["simulate"]


def test_a_kernel_states_how_far_it_may_be_off() -> None:
    for name, rounding in (
        ("simulate", 2**-18),
        ("dequantize", 2**-18),
        ("int8", 2**-18),
        ("bf16", 2**-7),
    ):
        assert KERNELS[name].rounding == rounding


def test_an_unknown_kernel_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown kernel 'simulat'; known: .*simulate.*did you"):
        make_kernel("simulat")
