"""MatMul: a float product of activations with a name."""

import pytest
import torch

from bitcycle import MatMul
from tests.toys import randn


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((3,), (3,))]
)
def test_it_is_torch_matmul(a, b):
    x, y = randn(*a), randn(*b, seed=2)
    assert torch.equal(MatMul()(x, y), torch.matmul(x, y))


def test_it_has_no_state():
    assert MatMul().state_dict() == {}
    assert list(MatMul().parameters()) == []
