"""The table and its JSON, and what is said about the processor."""

import json
from dataclasses import replace

import pytest
import torch

from bitcycle.native.library import instruction_set
from bitcycle_lab.bench.result import (
    BenchResult,
    StepTime,
    Timing,
    find_processor,
    weighted_mean,
)

ROWS = (
    StepTime(workload="net", kernel="float32", seconds=(0.2, 0.1), base=0.1, saved_bytes=4_000_000),
    StepTime(
        workload="net",
        kernel="native",
        bits="w8a8e8",
        seconds=(0.05, 0.06),
        base=0.1,
        saved_bytes=1_000_000,
        layers={"fc": ("simulate", "auto"), "conv": ("native", "auto"), "head": ("native", "auto")},
    ),
    StepTime(
        workload="net", kernel="simulate", bits="w8a8", seconds=(9.0,), is_once=True, base=0.1
    ),
    StepTime(workload="net", kernel="auto", bits="w8a8e8", notes=("net: nothing to convert",)),
)


def make_result(**changes):
    result = BenchResult(processor=find_processor(), sizes={"net": "a net"}, rows=ROWS, repeats=2)
    return replace(result, **changes)


def test_a_ratio_is_the_fastest_time_over_the_fastest_of_float32():
    assert [row.ratio for row in ROWS] == [1.0, 0.5, 90.0, None]


def test_the_table_shows_what_was_measured_and_the_notes_the_rest():
    text = str(make_result())
    table = [" ".join(line.split()) for line in text.splitlines()]
    assert "net float32 - 100.0 100.0 1.00 4.0 -" in table
    assert "native w8a8e8 50.0 50.0 0.50 1.0 native 6, simulate 3" in table
    assert "simulate w8a8 9000.0 once 90.00 - -" in table
    assert not any(line.startswith("auto") for line in table)
    assert "net: nothing to convert" in table
    assert "net: a net" in table
    assert "a large net" in str(make_result(is_quick=True, full_sizes={"net": "a large net"}))


def test_json_and_back_is_the_same_result():
    asked = {"kernels": ("auto",), "bits": ("3-8/8",), "keeps_freed_memory": True}
    result = make_result(budget=30.0, seconds=12.5, **asked)
    data = json.loads(json.dumps(result.to_dict()))
    assert BenchResult.from_dict(data) == result
    assert data["rows"][1]["ratio"] == 0.5
    assert data["rows"][1]["fastest"] == 0.05
    assert data["rows"][3]["ratio"] is None


def test_a_row_is_found_by_its_variant():
    assert make_result().find("net", "native", "w8a8e8").seconds == (0.05, 0.06)
    with pytest.raises(KeyError, match="native"):
        make_result().find("net", "native")


def test_the_features_found_are_those_the_kernels_go_by():
    found = find_processor()
    assert found.instruction_set == instruction_set()
    assert found.num_threads == torch.get_num_threads()
    assert found.torch_version == torch.__version__
    assert found.name


def test_a_step_of_several_kinds_takes_the_mean_of_their_fastest():
    kinds = [Timing((4.0, 2.0, 3.0)), Timing((8.0, 10.0), is_once=True)]
    mean = weighted_mean(kinds, [0.5, 0.5])
    assert mean == Timing((5.0, 6.5), is_once=True)
    assert mean.fastest == (2.0 + 8.0) / 2
