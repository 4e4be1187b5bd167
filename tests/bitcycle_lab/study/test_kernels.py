"""Runs of one study that were trained with different kernels are said to be."""

from dataclasses import replace

import pytest

from bitcycle_lab.study.comparison import comparison_json, comparison_tables
from bitcycle_lab.study.kernels import kernel_notes, kernels_text
from bitcycle_lab.study.tables import study_tables, to_markdown_page
from tests.bitcycle_lab.study.made_up import kernel_study

VNNI = ("native", "avx512_vnni")
AVX2 = ("native", "avx2")
SIMULATE = ("simulate", "avx2")
FLOAT32 = ("", "avx2")


@pytest.mark.parametrize(
    ("kernels", "notes"),
    [
        (
            {"static 8/8": [VNNI] * 3, "CPT 3-8/8": [VNNI, VNNI, SIMULATE]},
            ["kernels differ: CPT 3-8/8 ran native avx512_vnni (seeds 0, 1) and simulate (seed 2); "
             "static 8/8 ran native avx512_vnni"],
        ),
        (
            {"8/8": [AVX2] * 3, "6/6": [AVX2] * 3, "mxfp8": [SIMULATE] * 3},
            ["kernels differ: 8/8, 6/6 ran native avx2; mxfp8 ran simulate"],
        ),
        (
            {"8/8": [AVX2, VNNI, AVX2]},
            ["kernels differ: 8/8 ran native avx2 (seeds 0, 2) and native avx512_vnni (seed 1)"],
        ),
        (
            {"8/8": [("native simulate", "avx2"), ("simulate native", "avx2"), AVX2]},
            ["kernels differ: 8/8 ran native avx2 in 1 layer, simulate in 2 (seed 0) and "
             "native avx2 in 2 layers, simulate in 1 (seed 1) and native avx2 (seed 2)"],
        ),
        (
            {"ResNet: 8/8": [AVX2] * 3, "ResNet: 6/6": [AVX2] * 3,
             "LSTM: 8/8": [AVX2] * 3, "LSTM: 6/6": [SIMULATE] * 3},
            ["kernels differ in LSTM: 8/8 ran native avx2; 6/6 ran simulate"],
        ),
        ({"8/8": [AVX2] * 3, "float32": [FLOAT32] * 3}, []),
        ({"8/8": [SIMULATE, ("simulate", "avx512_vnni"), ("simulate", None)]}, []),
        ({"float32": [FLOAT32] * 3}, []),
    ],
)  # fmt: skip
def test_a_group_whose_runs_had_different_kernels_gets_a_note(kernels, notes):
    assert kernel_notes(kernel_study(kernels)) == notes


def test_a_run_that_is_not_done_has_no_kernel():
    result = kernel_study({"8/8": [AVX2] * 3, "6/6": [SIMULATE] * 3})
    first, second = result.methods
    missing = tuple(replace(run, state="missing", result=None) for run in second.runs)
    assert kernel_notes(replace(result, methods=(first, replace(second, runs=missing)))) == []


def test_the_note_stands_with_the_tables_and_in_the_json():
    result = kernel_study({"8/8": [AVX2] * 3, "6/6": [SIMULATE] * 3}, notes=("a small network",))
    sentence = "Kernels differ: 8/8 ran native avx2; 6/6 ran simulate."
    assert f"A small network. {sentence}" in study_tables(result)[0].caption
    assert sentence in to_markdown_page(result)
    [runs] = [table for table in comparison_tables(result) if table.name == "runs"]
    assert sentence.lower() in runs.caption.lower()
    assert comparison_json(result)["notes"] == ["a small network", *kernel_notes(result)]


def test_the_kernels_of_several_runs_are_named_once():
    result = kernel_study({"8/8": [AVX2] * 3, "6/6": [("native simulate", "avx2")] * 3})
    runs = [run for each in result.methods for run in each.results.values()]
    assert kernels_text(*runs) == "native avx2 and simulate"
    assert kernels_text() == ""
