"""Machine, threads and wall-clock in sentences."""

from bitcycle.report.evidence.measured import machine_line, take, wall_clock_line
from tests.report.evidence.made import MACHINE, MACHINE_LINE, MADE


def test_what_is_not_known_is_said_to_be():
    assert machine_line([{}]) == "Machine: not recorded."
    assert wall_clock_line([{}, {}], "test") == "Wall-clock: not recorded."
    versions = take({"origin": {"torch": "2.13.0", "threads": 1}})
    assert machine_line([versions]) == "Machine: not recorded, torch 2.13.0."


def test_several_of_one_machine_are_named_once_and_those_without_are_counted():
    assert machine_line([MADE, MADE], each="a test") == f"{MACHINE_LINE} a test."
    other = {**MADE, "machine": {**MACHINE, "num_cpus": 4}, "threads": 2}
    line = machine_line([MADE, other, {}])
    assert line.startswith("Machine: AMD EPYC, 2 cores, AVX2,")
    assert "; AMD EPYC, 4 cores, AVX2," in line
    assert line.endswith("; not recorded for 1 of 3, 1 or 2 threads.")
    assert machine_line([{**MADE, "jobs": 2}]) == f"{MACHINE_LINE}, 2 processes."


def test_seconds_are_summed_and_their_range_is_told():
    assert wall_clock_line([MADE], "test") == "Wall-clock: 1 min 15 s."
    assert wall_clock_line([{"seconds": 4.0}, {"seconds": 75.0}, {}], "test") == (
        "Wall-clock: 2 tests, 1 min 19 s one after another, 4.0 s to 1 min 15 s each; not recorded "
        "for 1 of 3."
    )


def test_nothing_else_of_a_machine_is_taken():
    found = {**MADE, "machine": {**MACHINE, "command": ["/home/me/bin/x"], "platform": "x"}}
    assert take(found) == {**MADE, "seconds": 75.25}
