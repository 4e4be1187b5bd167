"""The kernel boundary: names, choice, descriptions."""

from __future__ import annotations

import pytest

from bitcycle.kernels import KERNELS, choose_kernel


def test_a_kernel_asked_for_by_name_is_taken() -> None:
    assert choose_kernel("simulate") == ("simulate", "asked for")


def test_auto_says_why_it_chose() -> None:
    name, reason = choose_kernel("auto")
    assert name in KERNELS
    assert reason.startswith("auto")


def test_an_unknown_kernel_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown kernel 'simulat'; known: .*simulate.*did you"):
        choose_kernel("simulat")


def test_every_kernel_knows_its_name() -> None:
    for name, kernel in KERNELS.items():
        assert kernel.name == name
