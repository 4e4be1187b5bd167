"""What a plan chooses from."""

from __future__ import annotations

import pytest

from bitcycle.cost.plan_candidates import list_candidates
from bitcycle.schedules import parse_schedule


def texts(low: int, high: int, **options: object) -> list[str]:
    return [str(one) for one in list_candidates(low, high, **options)]  # type: ignore[arg-type]


def test_one_range_and_one_number_of_cycles_give_every_published_kind() -> None:
    assert texts(3, 4, total_steps=64_000, cycles=[8]) == [
        "3",
        *(f"{name}:3-4:8" for name in ("CR", "CT", "ER", "ET-H", "ET-V", "LR", "LT", "RR", "RT-H",
                                       "RT-V", "anneal", "triangle")),
        *(f"delay@{start}(CR:3-4:8)" for start in (0.375, 0.5, 0.625, 0.75)),
        *(f"ramp:3-4@{until}" for until in (0.25, 0.5, 0.75)),
        *(f"stages:3@{end},4" for end in (0.25, 0.5, 0.75, 0.9)),
    ]  # fmt: skip


def test_every_lower_bound_is_tried_and_only_the_given_tops() -> None:
    def ramps(*tops: int) -> list[str]:
        found = texts(5, 8, total_steps=100, cycles=[1], tops=tops)
        return [text.removesuffix("@0.5") for text in found if text.endswith("@0.5")]

    assert ramps() == ["ramp:5-8", "ramp:6-8", "ramp:7-8"]
    assert ramps(6, 8) == ["ramp:5-8", "ramp:6-8", "ramp:7-8", "ramp:5-6"]


def test_bits_that_mean_float32_are_no_lower_bounds() -> None:
    found = list_candidates(22, 32, total_steps=100, cycles=[2])
    assert {one.low for one in found} == {22, 23}


def test_the_published_numbers_of_cycles_are_the_default_as_far_as_they_fit() -> None:
    def cycles(total_steps: int) -> list[str]:
        found = texts(3, 4, total_steps=total_steps)
        return [text.rpartition(":")[2] for text in found if text.startswith("CR")]

    assert cycles(64_000) == ["2", "8", "32"]
    assert cycles(31) == ["2", "8"]
    assert cycles(1) == []


def test_a_late_start_that_leaves_too_few_steps_is_left_out() -> None:
    found = texts(3, 4, total_steps=10, cycles=[5])
    assert [text for text in found if text.startswith("delay")] == [
        "delay@0.375(CR:3-4:5)", "delay@0.5(CR:3-4:5)",
    ]  # fmt: skip


def test_every_candidate_is_written_so_that_it_can_be_read_back_and_none_twice() -> None:
    found = list_candidates(3, 8, total_steps=64_000, tops=[6, 7])
    assert [parse_schedule(str(one)) for one in found] == found
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 8, "high": 8}, "low and high are both 8"),
        ({"low": 8, "high": 3}, r"low \(8\) must be <= high \(3\)"),
        ({"low": 24, "high": 32}, r"low \(24\) is float32, as all bits from 24 on"),
        ({"cycles": []}, "cycles is empty"),
        ({"cycles": [8, 0]}, "cycles must be a whole number of at least 1, got 0"),
        ({"cycles": [101]}, r"cycles \(101\) must be <= total_steps \(100\)"),
        ({"tops": [3]}, r"tops must lie above low \(3\) and up to high \(8\), got 3"),
        ({"tops": [9]}, "got 9"),
        ({"total_steps": 0}, "total_steps must be at least 1"),
    ],
)
def test_what_cannot_be_meant_is_an_error(options: dict[str, object], message: str) -> None:
    given = {"low": 3, "high": 8, "total_steps": 100, **options}
    with pytest.raises(ValueError, match=message):
        texts(**given)  # type: ignore[arg-type]
