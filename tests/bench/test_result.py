"""The table and its JSON, and what is said about the processor."""

import json
from dataclasses import replace

import pytest
import torch

from bitcycle.bench.result import BenchResult, Processor, StepTime, find_processor
from bitcycle.kernels import exact_bits

ROWS = (
    StepTime(workload="net", kernel="float32", seconds=(0.2, 0.1), base=0.1, saved_bytes=4_000_000),
    StepTime(
        workload="net",
        kernel="int8",
        bits="w8a8e8",
        seconds=(0.05, 0.06),
        base=0.1,
        saved_bytes=1_000_000,
        layers={"fc": ("int8/bf16/int8", "asked for"), "conv": ("int8", "asked for")},
    ),
    StepTime(workload="net", kernel="bf16", bits="w8a8e8", seconds=(9.0,), is_once=True, base=0.1),
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
    assert "int8 w8a8e8 50.0 50.0 0.50 1.0 int8 5, bf16 1" in table
    assert "bf16 w8a8e8 9000.0 once 90.00 - -" in table
    assert not any(line.startswith("auto") for line in table)
    assert "net: nothing to convert" in table
    assert "net: a net" in table
    assert "--quick" not in text
    assert "--quick: sizes too small" in str(make_result(is_quick=True))


def test_json_and_back_is_the_same_result():
    result = make_result(budget=30.0, seconds=12.5)
    data = json.loads(json.dumps(result.to_dict()))
    assert BenchResult.from_dict(data) == result
    assert data["rows"][1]["ratio"] == 0.5
    assert data["rows"][1]["fastest"] == 0.05
    assert data["rows"][3]["ratio"] is None
    older = {key: value for key, value in data.items() if key not in ("budget", "seconds")}
    assert BenchResult.from_dict(older) == make_result()


def test_a_row_is_found_by_its_variant():
    assert make_result().find("net", "int8", "w8a8e8").seconds == (0.05, 0.06)
    with pytest.raises(KeyError, match="no row net, int8, float32"):
        make_result().find("net", "int8")


def test_the_features_found_are_those_the_kernels_go_by():
    found = find_processor()
    assert found.exact_bits == exact_bits("cpu")
    assert found.num_threads == torch.get_num_threads()
    assert found.torch_version == torch.__version__
    assert found.name


def test_the_text_names_every_feature():
    processor = Processor(
        name="Some CPU",
        capability="AVX512",
        has_vnni=True,
        has_bf16=True,
        has_amx=False,
        exact_bits=16,
        num_threads=2,
        torch_version="2.6.0",
    )
    assert str(processor) == (
        "Some CPU, 2 threads, torch 2.6.0\n"
        "capability AVX512, VNNI yes, BF16 yes, AMX no, int8 products exact up to 16 bits of both "
        "operands together"
    )
