"""Generators come back to where they were; a run's settings do not outlive it."""

import random

import numpy as np
import pytest
import torch

from bitcycle.train.reproduce import (
    kept_settings,
    random_state,
    restore_random_state,
    seed_everything,
    seed_of_process,
)
from bitcycle.train.statefile import read_state, write_state


def draw():
    return [torch.rand(2).tolist(), np.random.rand(2).tolist(), np.random.standard_normal(),
            random.random(), random.gauss(0, 1)]  # fmt: skip


def test_a_seed_decides_all_three_generators():
    seed_everything(3)
    first = draw()
    seed_everything(3)
    assert draw() == first
    seed_everything(4)
    assert draw() != first


def test_a_seed_may_be_larger_than_numpy_takes():
    seed_everything(2**32 + 5)
    first = draw()
    seed_everything(2**32 + 5)
    assert draw() == first


def test_every_process_draws_numbers_of_its_own():
    seeds = [seed_of_process(seed, rank) for seed in (0, 1, 2**40) for rank in range(4)]
    assert seeds[::4] == [0, 1, 2**40]
    assert len(set(seeds)) == len(seeds)
    seed_everything(seeds[-1])  # each is one that the generators take


def test_generators_go_on_from_a_saved_state(tmp_path):
    seed_everything(0)
    draw()  # an odd number of normal numbers: one is kept for the next call
    write_state(tmp_path, "random", random_state())
    expected = [draw(), draw()]
    seed_everything(1)
    restore_random_state(read_state(tmp_path, "random"))
    assert [draw(), draw()] == expected


def test_settings_come_back_also_after_an_error():
    threads = torch.get_num_threads()
    was_deterministic = torch.are_deterministic_algorithms_enabled()

    def change():
        with kept_settings():
            torch.set_num_threads(threads + 1)
            torch.use_deterministic_algorithms(not was_deterministic, warn_only=True)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        change()
    assert torch.get_num_threads() == threads
    assert torch.are_deterministic_algorithms_enabled() == was_deterministic
