"""The batch of a step is a function of the step, for any number of ranks and workers."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bitcycle_lab.data import IGNORE, Batch, Batches, ImageArrays, Key, OnePass, select
from bitcycle_lab.data.batches import check_position, in_order, slice_bounds


def images(number: int) -> ImageArrays:
    """Images that show their index, augmented."""
    pixels = torch.arange(number).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).to(torch.uint8)
    noise = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    return ImageArrays(
        pixels=pixels * 16 + noise,
        targets=torch.arange(number),
        mean=(0.5,),
        std=(0.25,),
        padding=1,
        flip=True,
    )


sizes = st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(1, 4), st.integers(1, 3))


def possible(number, batch_size, world_size, num_micro, drop_last=False):
    tail = number % batch_size
    assume(batch_size >= world_size * num_micro)
    assume(number >= batch_size if drop_last else tail == 0 or tail >= world_size * num_micro)


@settings(max_examples=40)
@given(sizes, st.integers(0, 2**40), st.integers(0, 30))
def test_ranks_and_micro_batches_union_to_the_single_process_batch(size, seed, step):
    number, batch_size, world_size, num_micro = size
    possible(*size)
    samples = images(number)
    whole = Batches(samples, batch_size=batch_size, seed=seed).batch_at(step)
    parts = [
        Batches(
            samples,
            batch_size=batch_size,
            seed=seed,
            rank=rank,
            world_size=world_size,
            num_micro=num_micro,
        ).batch_at(step, micro)
        for micro in range(num_micro)
        for rank in range(world_size)
    ]
    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
    assert torch.equal(torch.cat([part.indices for part in parts]), whole.indices)
    assert all(part.num_targets > 0 for part in parts)
    assert sum(part.share for part in parts) == pytest.approx(1.0)


@settings(max_examples=40)
@given(sizes, st.integers(0, 100), st.booleans())
def test_every_sample_appears_once_per_epoch(size, seed, drop_last):
    number, batch_size, _, num_micro = size
    possible(number, batch_size, 1, num_micro, drop_last)
    batches = Batches(
        images(number), batch_size=batch_size, seed=seed, num_micro=num_micro, drop_last=drop_last
    )
    steps = batches.steps_per_epoch
    for epoch in (0, 3):
        seen = torch.cat(
            [batch.indices for batch in batches.from_step(epoch * steps, (epoch + 1) * steps)]
        ).tolist()
        assert len(set(seen)) == len(seen) == (steps * batch_size if drop_last else number)


@settings(max_examples=12)
@given(st.integers(0, 25), st.integers(1, 3))
def test_starting_anywhere_equals_iterating_from_the_start(start, num_micro):
    batches = Batches(images(23), batch_size=6, seed=1, num_micro=num_micro)
    everything = list(batches.from_step(0, 30))
    resumed = list(
        Batches(images(23), batch_size=6, seed=1, num_micro=num_micro).from_step(start, 30)
    )
    rest = everything[start * num_micro :]
    assert [(b.step, b.micro, b.epoch) for b in resumed] == [
        (b.step, b.micro, b.epoch) for b in rest
    ]
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(resumed, rest, strict=True))


def test_an_augmented_image_does_not_depend_on_batch_size():
    def first_epoch(batch_size: int) -> dict[int, torch.Tensor]:
        batches = Batches(images(15), batch_size=batch_size, seed=4)
        return {
            int(index): image
            for batch in batches.from_step(0, batches.steps_per_epoch)
            for index, image in zip(batch.indices, batch.inputs, strict=True)
        }

    small, large = first_epoch(4), first_epoch(15)
    assert all(torch.equal(small[index], large[index]) for index in range(15))


def test_asked_for_it_training_batches_are_shuffled_but_not_augmented():
    samples = images(10)
    batch = Batches(samples, batch_size=5, seed=0, is_augmented=False).batch_at(0)
    assert torch.equal(batch.inputs, samples.normalize(samples.pixels[batch.indices]))


def test_a_batch_size_that_leaves_a_process_without_samples_is_refused_at_once():
    with pytest.raises(ValueError, match="0"):
        OnePass(images(7), batch_size=0)
    with pytest.raises(ValueError, match="drop_last=True"):
        Batches(images(17), batch_size=8, seed=0, world_size=2)
    assert Batches(images(17), batch_size=8, seed=0, world_size=2, drop_last=True)
    with pytest.raises(ValueError, match="3 samples"):
        Batches(images(3), batch_size=8, seed=0, drop_last=True)


@pytest.mark.parametrize(("step", "micro"), [(-1, 0), (0, 1), (0, -1)])
def test_a_position_that_does_not_exist_is_refused(step, micro):
    with pytest.raises(ValueError, match=str(step or micro)):
        Batches(images(8), batch_size=4, seed=0).batch_at(step, micro)


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4))
def test_a_pass_sees_everything_once_in_order_and_ranks_divide_its_batches(
    number, batch_size, world_size
):
    samples = images(number)
    whole = list(OnePass(samples, batch_size=batch_size))
    assert torch.equal(torch.cat([b.targets for b in whole]), torch.arange(number))
    assert torch.equal(torch.cat([b.inputs for b in whole]), samples.normalize(samples.pixels))
    assert sum(b.share for b in whole) == pytest.approx(1.0)
    parts = [
        OnePass(samples, batch_size=batch_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    by_step = {batch.step: batch for part in parts for batch in part}
    assert sum(len(part) for part in parts) == len(by_step) == len(whole)
    assert all(torch.equal(by_step[b.step].inputs, b.inputs) for b in whole)


def test_samples_prepared_ahead_give_the_same_batches():
    class Ahead(ImageArrays):
        num_prefetch = 3

    plain = images(20)
    ahead = Ahead(
        pixels=plain.pixels, targets=plain.targets, mean=(0.5,), std=(0.25,), padding=1, flip=True
    )
    for batch_size in (4, 20):  # 20: every step is an epoch, several are prepared at once
        expected = Batches(plain, batch_size=batch_size, seed=0).from_step(3, 40)
        got = Batches(ahead, batch_size=batch_size, seed=0).from_step(3, 40)
        assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(got, expected, strict=True))


def test_global_randomness_is_neither_used_nor_changed():
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = Batches(images(20), batch_size=4, seed=0).batch_at(3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    torch.manual_seed(1)
    assert torch.equal(first.inputs, Batches(images(20), batch_size=4, seed=0).batch_at(3).inputs)


def test_padding_does_not_count_as_a_target():
    targets = torch.tensor([[1, 2], [3, IGNORE]])
    assert Batch(inputs=targets, targets=targets).num_targets == 3


@given(st.integers(0, 500), st.integers(1, 40))
def test_slices_are_contiguous_complete_and_even(length, num_parts):
    bounds = [slice_bounds(length, num_parts, part) for part in range(num_parts)]
    assert [i for start, stop in bounds for i in range(start, stop)] == list(range(length))
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("rank", "world_size", "batch_size", "num_micro", "message"),
    [
        (2, 2, 8, 1, r"rank \(2\)"),
        (-1, 2, 8, 1, r"rank \(-1\)"),
        (0, 0, 8, 1, "world_size"),
        (0, 1, 8, 0, r"num_micro \(0\)"),
        (0, 4, 7, 2, r"batch_size \(7\)"),
    ],
)
def test_an_impossible_division_is_refused(rank, world_size, batch_size, num_micro, message):
    with pytest.raises(ValueError, match=message):
        check_position(rank=rank, world_size=world_size, batch_size=batch_size, num_micro=num_micro)


def random_images(number: int = 100) -> ImageArrays:
    return ImageArrays(
        pixels=torch.randint(0, 256, (number, 1, 4, 4), dtype=torch.uint8),
        targets=torch.arange(number),
        mean=(0.0,),
        std=(1.0,),
        padding=2,
        flip=True,
    )


def numbers(samples) -> list[int]:
    return [int(t) for batch in OnePass(samples, batch_size=7) for t in batch.targets]


@given(st.integers(2, 80), st.integers(1, 79), st.floats(0.1, 1.0), st.integers(0, 50))
def test_training_and_validation_are_disjoint_and_as_large_as_asked(number, held, subset, seed):
    held = min(held, number - 1)
    if round(subset * (number - held)) == 0:
        return
    train, validation = select(random_images(number), validation=held, subset=subset, seed=seed)
    assert len(validation) == held
    assert len(train) == round(subset * (number - held))
    assert not set(numbers(train)) & set(numbers(validation))


def test_the_choice_is_a_function_of_the_seed():
    first, again, other = (
        numbers(select(random_images(), subset=20, seed=s)[0]) for s in (1, 1, 2)
    )
    assert first == again == sorted(first)
    assert first != other


def test_the_validation_set_does_not_depend_on_the_subset():
    _, validation = select(random_images(), validation=0.1, seed=3)
    _, with_subset = select(random_images(), validation=0.1, subset=10, seed=3)
    assert numbers(validation) == numbers(with_subset)


def test_a_chosen_sample_is_augmented_as_it_is_in_the_whole_set():
    samples = random_images()
    train, _ = select(samples, subset=10, seed=0)
    inputs, targets = train.fetch(np.array([4]), Key(5, 6))
    whole, _ = samples.fetch(targets.numpy(), Key(5, 6))
    assert torch.equal(inputs, whole)


@pytest.mark.parametrize(
    ("name", "amount"),
    [
        ("subset", 0), ("subset", 101), ("subset", 1.5), ("subset", 0.001), ("subset", True),
        ("validation", -3), ("validation", 100),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_met_is_refused(name, amount):
    with pytest.raises(ValueError, match=rf"{name}.*{amount}"):
        select(random_images(), **{name: amount})


@pytest.mark.parametrize("depth", [0, 1, 10])
def test_results_come_in_the_order_of_the_jobs(depth):
    def job(number: int) -> int:
        time.sleep(0.003 * (number % 3 == 0))
        return number

    jobs = ((lambda n=n: job(n)) for n in range(12))
    assert list(in_order(jobs, depth=depth)) == list(range(12))


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_is_raised_at_its_turn(depth):
    def fail() -> int:
        raise ValueError("third")

    results = in_order([lambda: 1, lambda: 2, fail, lambda: 4], depth=depth)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(results)


def test_jobs_run_ahead_but_not_further_than_the_depth():
    started: list[int] = []

    def jobs():
        for number in range(100):
            yield lambda n=number: started.append(n)

    results = in_order(jobs(), depth=2)
    next(results)
    time.sleep(0.05)
    assert sorted(started) == [0, 1, 2]
    results.close()


def test_a_consumer_that_stops_early_leaves_no_threads():
    before = threading.active_count()
    results = in_order(((lambda n=n: n) for n in range(1000)), depth=4)
    assert next(results) == 0
    results.close()
    assert threading.active_count() == before
