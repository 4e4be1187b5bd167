"""Bits of tensors, compared; and what plain torch computes."""

from contextlib import contextmanager
from unittest import mock

import torch

from bitcycle.gpu import driver


@contextmanager
def plain_torch():
    """Without kernels; the tests run without the native library."""
    with mock.patch.object(driver, "_reads_cpu_tensors", False):
        yield


def assert_same_bits(found, expected):
    """Equal to the last bit, zeros with their sign; any NaN equals any other."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if not found.is_floating_point():
        assert torch.equal(found, expected)
        return
    integers = {4: torch.int32, 2: torch.int16}[found.element_size()]
    same = found.contiguous().view(integers) == expected.contiguous().view(integers)
    same |= found.isnan() & expected.isnan()
    assert same.all(), f"{(~same).sum()} of {same.numel()} differ: {found[~same][:5]}"


def levels_of(bits):
    return torch.tensor(2**bits - 1, dtype=torch.int32)
