"""What a configuration's bits do."""

import pytest

from bitcycle.study.publish.cycles import is_alike, is_cyclic, is_plain, num_cycles, reached, tops
from bitcycle.train.config import PrecisionConfig
from tests.study.made_up import config


def test_cycles_that_start_late_count_and_those_that_never_start_do_not():
    assert is_cyclic(config("delay@0.25(CR:3-8:8)"))
    assert not is_cyclic(config("delay@1.0(CR:3-8:8)"))
    assert not is_cyclic(config("stages:3@60,8"))


@pytest.mark.parametrize(
    ("forward", "number"),
    [("CR:3-8:8", 8), ("delay@0.25(CR:3-8:4)", 4), ("CR:8-8:8", None), (8, None)],
)
def test_cycles_are_counted(forward, number):
    assert num_cycles(config(forward)) == number


@pytest.mark.parametrize(
    ("forward", "expected"),
    [("CR:3-8:8", True), ("CR:auto-8:8", False), ("delay@0.25(CR:3-8:8)", False),
     ("ER:3-8:8", False), ("CR:8-8:8", False), (8, False)],
)  # fmt: skip
def test_published_cpt_is_cosine_cycles_from_the_first_step(forward, expected):
    assert is_plain(config(forward)) is expected


def test_tops_are_of_every_role_and_of_every_pattern_of_layers():
    assert tops(config("CR:3-8:8")) == {"weight ": 8, "act ": 8, "error ": 8, "grad ": 8}
    patterns = PrecisionConfig(forward={"conv*": "CR:3-6:8", "*": 8}, backward=8)
    found = tops(config(precision=patterns))
    assert (found["weight conv*"], found["act conv*"], found["weight *"]) == (6, 6, 8)


def test_alike_is_all_but_name_and_bits():
    static = config(8)
    assert is_alike(config("CR:3-8:8", name="other"), static)
    assert not is_alike(config("CR:3-8:8", steps=100), static)
    quantizer = PrecisionConfig(forward="CR:3-8:8", backward=8, quantizer="absmax")
    assert not is_alike(config(precision=quantizer), static)
    assert is_alike(config(precision=quantizer), config(precision=PrecisionConfig()))


@pytest.mark.parametrize(
    ("forward", "number"),
    [
        ("delay@1(CR:3-8:8)", 8),  # an integer is a step
        ("delay@1.0(CR:3-8:8)", None),
        ("delay@240(CR:3-8:8)", None),
        ("delay@0.1(delay@0.1(CR:3-8:8))", 8),
        ("seq(CR:3-8:8@0.5, 8)", 8),
    ],
)
def test_cycles_inside_other_schedules_count(forward, number):
    assert num_cycles(config(forward)) == number


def test_the_bits_that_a_run_reaches():
    assert reached(config("RR:3-8:8")) == (8, 7, 7)
    assert reached(config("RT-V:3-8:8")) == (8, 8, 7)
    assert reached(config("CR:3-8:8", steps=30)) == (8, 8, 7)
    assert reached(config(8)) == (8, 8, 8)
