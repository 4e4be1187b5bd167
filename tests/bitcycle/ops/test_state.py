"""Updates of a layer's buffers, with the native library and without."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bitcycle.native import encode
from bitcycle.ops.state import count_up, flag_nonfinite, observe

INF, NAN = float("inf"), float("nan")
numbers = st.floats(-1e6, 1e6, width=32)


@pytest.fixture(params=["native", "plain"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(encode, "_functions", lambda: None)


def test_counting_returns_a_copy_of_all_numbers() -> None:
    clock = torch.tensor([5, 6, 2**31 - 1], dtype=torch.int32)
    first = count_up(clock, 1)
    assert first.tolist() == clock.tolist() == [5, 7, 2**31 - 1]
    assert count_up(clock, 2).tolist() == [5, 7, -(2**31)]
    assert first.tolist() == [5, 7, 2**31 - 1]


def test_only_a_range_that_is_not_finite_sets_its_flag() -> None:
    flags = torch.zeros(4)
    flag_nonfinite(flags, 0, torch.tensor(-1.0), torch.tensor(3e38))
    flag_nonfinite(flags, 1, torch.tensor(NAN), torch.tensor(NAN))
    flag_nonfinite(flags, 2, torch.zeros(3, 1), torch.tensor([[1.0], [INF], [1.0]]))
    flag_nonfinite(flags, 3, torch.zeros(0), torch.zeros(0))
    assert flags.isnan().tolist() == [False, True, True, False]
    flag_nonfinite(flags, 1, torch.tensor(0.0), torch.tensor(1.0))
    assert flags[1].isnan()  # stays


def test_running_ranges_have_a_momentum_or_are_means() -> None:
    rows = torch.zeros(2, 3)
    for high in (1.0, 2.0, INF, NAN, 3.0):
        observe(rows, 0, torch.tensor(-1.0), torch.tensor(high), 0.5)
        observe(rows, 1, torch.tensor(-1.0), torch.tensor(high), None)
    assert rows[0].tolist() == [3.0, -1.0, 3.25]  # 2, 2.5, then 0.5 * 2.5 + 0.5 * 4
    assert rows[1].tolist() == [3.0, -1.0, 3.0]


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), st.sampled_from((None, 0.1)))
def test_both_ways_give_the_same_bits(
    ranges: list[tuple[float, float]], momentum: float | None
) -> None:
    ours, plain = torch.zeros(1, 3), torch.zeros(1, 3)
    for low, high in ranges:
        ends = torch.tensor(low), torch.tensor(high)
        observe(ours, 0, *ends, momentum)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(encode, "_functions", lambda: None)
            observe(plain, 0, *ends, momentum)
    assert torch.equal(ours, plain)
