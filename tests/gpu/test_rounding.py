"""Rounding by torch's operators on the device: equal to the CPU's to the bit, in its layout."""

from __future__ import annotations

import pytest
import torch

from bitcycle.bits import Bits
from bitcycle.formats.catalogue import list_formats
from bitcycle.formats.rounding import round_blocks, round_to
from bitcycle.ops.layout import is_dense
from bitcycle.ops.noise import count_from, uniform
from bitcycle.quantizers.blocks import NVFP4

from .emulated import counted, is_emulated

BLOCKS = {each.kind: each for each in list_formats() if each.kind != "float"}


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", [each.name for each in list_formats()])
def test_a_format_is_rounded_as_on_the_cpu(name, rounding):
    x = values(5, 37)
    for dim in (0, 1):
        ours = round_to(x.cuda(), name, dim, rounding=rounding)
        assert torch.equal(ours.cpu(), round_to(x, name, dim, rounding=rounding))


@pytest.mark.parametrize("shape", [(2, 32, 4, 4), (2, 7, 3, 3)])  # whole blocks, and padded ones
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_of_channels_last_tensors_keep_the_layout(kind, shape):
    x = values(*shape).to(memory_format=torch.channels_last)
    numbers = torch.tensor(Bits.of(BLOCKS[kind].name).numbers, dtype=torch.int32)
    block = BLOCKS[kind].block or 128
    ours, theirs = (
        round_blocks(x.to(device), numbers.to(device), kind=kind, dims=(1,), blocks=(block,))
        for device in ("cuda", "cpu")
    )
    assert ours.stride() == theirs.stride() == x.stride()
    assert torch.equal(ours.cpu(), theirs)


def test_blocks_of_a_tensor_with_gaps_have_none():
    x = values(4, 40)[:, ::2].cuda()
    numbers = torch.tensor(Bits.of("mxfp4").numbers, dtype=torch.int32).cuda()
    assert is_dense(round_blocks(x, numbers, kind="mx", dims=(1,), blocks=(32,)))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("is_captured", [False, True])
def test_the_signs_of_the_hadamard_transform_are_uploaded_once(seed, is_captured, monkeypatch):
    rule = NVFP4(hadamard_seed=seed)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_captured)
    device = torch.zeros((), device="cuda").device
    if not is_captured:
        rule.hadamard_signs(device)
    with counted() as counts:
        ours = rule.hadamard_signs(device)
    assert counts.uploads == 0
    if is_emulated():
        assert (counts.launches == 0) is not is_captured
    assert ours.tolist() == rule.hadamard_signs(torch.device("cpu")).tolist()


def test_element_numbers_beyond_31_bits_wrap_to_the_same_noise():
    key = torch.tensor([11, -7], dtype=torch.int32, device="cuda")
    numbers = count_from(2**31 - 2, 2**31 + 2, key.device)
    assert numbers.tolist() == [2**31 - 2, 2**31 - 1, -(2**31), -(2**31) + 1]
    again = count_from(2**32 + 5, 2**32 + 9, key.device)
    first = count_from(5, 9, key.device)
    assert torch.equal(uniform(again, key), uniform(first, key))
