"""Steps over rows of sequences that end at different times."""

from __future__ import annotations

import pytest
import torch

from bitcycle.nn.recurrence import Steps


@pytest.mark.parametrize("counts", [(4,), (3, 3), (3, 2, 2, 1), (0, 0)])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_joining_what_was_split_gives_the_rows_back(
    counts: tuple[int, ...], is_reversed: bool
) -> None:
    steps, rows = Steps(counts, is_reversed), torch.randn(sum(counts), 2)
    parts = steps.split(rows)
    assert [len(part) for part in parts] == list(counts[::-1] if is_reversed else counts)
    assert torch.equal(steps.join(parts), rows)


def test_a_reversed_direction_starts_at_the_last_time_step() -> None:
    first, last = Steps((2, 1), is_reversed=True).split(torch.arange(3))
    assert (first.tolist(), last.tolist()) == ([2], [0, 1])
