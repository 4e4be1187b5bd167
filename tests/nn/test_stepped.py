"""The noise of a layer's products: one clock, as many different keys as there are products."""

from __future__ import annotations

import torch

from bitcycle.nn.product import CLOCK, CONTROL_SIZE
from bitcycle.nn.stepped import part_of
from bitcycle.ops.noise import noise_key


def test_parts_of_a_call_have_keys_of_their_own_and_leave_the_clock_alone() -> None:
    control = torch.arange(CONTROL_SIZE, dtype=torch.int32)
    parts = [part_of(control, part) for part in range(50)]
    keys = {tuple(noise_key(part[CLOCK]).tolist()) for part in parts}
    assert len(keys) == 50
    assert part_of(control, 0) is control
    assert control.tolist() == list(range(CONTROL_SIZE))
    for part in parts:
        assert torch.equal(part[: CLOCK.start], control[: CLOCK.start])
        assert torch.equal(part[CLOCK.start + 1 :], control[CLOCK.start + 1 :])
