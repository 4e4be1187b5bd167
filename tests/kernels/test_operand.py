"""Operands: whole numbers with a scale and an offset, and their sums."""

from __future__ import annotations

import pytest
import torch

from bitcycle.kernels.operand import Operand, per_channel


def _operand(numbers: torch.Tensor, scale: float = 0.5, offset: float = -1.0) -> Operand:
    return Operand(numbers, torch.tensor(scale), torch.tensor(offset), 8)


def test_numbers_are_summed_and_values_with_them() -> None:
    operand = _operand(torch.tensor([[0, 255, 3], [1, 1, 1]], dtype=torch.uint8))
    assert operand.sum([1]).tolist() == [258.0, 3.0]
    assert operand.sum([0], keepdim=True).tolist() == [[1.0, 256.0, 4.0]]
    assert operand.sum([0, 1]).item() == 261.0
    assert operand.value_sum([1]).tolist() == [258 * 0.5 - 3, 3 * 0.5 - 3]
    assert operand.value_sum([1], keepdim=True).shape == (2, 1)


@pytest.mark.parametrize(("dtype", "code"), [(torch.uint8, 255), (torch.int8, -128)])
def test_long_sums_do_not_overflow(dtype: torch.dtype, code: int) -> None:
    for length in (1 << 23, (1 << 24) + 1):  # the last that fits into int32; beyond 2^31 in all
        numbers = torch.full((1, 1), code, dtype=dtype).expand(1, length)
        total = float(_operand(numbers).sum([1]))
        assert total == pytest.approx(length * code, rel=2**-24)


def test_sums_of_bfloat16_numbers_are_float32() -> None:
    operand = _operand(torch.full((4, 1000), 201.0, dtype=torch.bfloat16))
    assert operand.sum([1]).tolist() == [200 * 1000 + 1000.0] * 4
    assert operand.sum([1]).dtype == torch.float32


def test_a_number_or_one_per_channel_becomes_a_vector() -> None:
    assert per_channel(torch.tensor(2.0), 3).tolist() == [2.0, 2.0, 2.0]
    assert per_channel(torch.tensor([[[1.0]], [[2.0]]]), 2).tolist() == [1.0, 2.0]
    assert per_channel(torch.tensor([[3.0]]), 4).shape == (4,)


def test_the_sum_over_a_batch_is_the_same_in_every_layout():
    for layout in (torch.contiguous_format, torch.channels_last):
        for shape in ((5, 3, 4, 2), (1, 3, 1, 2), (4, 1, 3, 1), (3, 2, 1, 1)):
            numbers = (torch.arange(120)[: torch.Size(shape).numel()] * 37 % 256).view(shape)
            x = numbers.to(torch.uint8).contiguous(memory_format=layout)
            operand = Operand(x, torch.tensor(1.0), torch.tensor(0.0), 8)
            expected = numbers.sum(0).to(torch.float32)
            assert torch.equal(operand.sum([0]), expected)
            assert torch.equal(operand.sum([0], keepdim=True), expected.unsqueeze(0))
            assert torch.equal(
                Operand(x[::2], *[torch.tensor(0.0)] * 2, 8).sum([0]), numbers[::2].sum(0).float()
            )
