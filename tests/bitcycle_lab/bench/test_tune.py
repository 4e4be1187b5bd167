"""The table of kernels for one machine: from times to rows, and to a file."""

from math import prod

import pytest
import torch

from bitcycle.kernels import choice
from bitcycle.kernels.choice import LAYERS, TOPS, Recurrence, TableRow, layer_kind, read_table
from bitcycle_lab.bench import tune
from bitcycle_lab.bench.tune import (
    LayerStep,
    cases,
    choose_kernels,
    count_cases,
    find_rows_from,
    make_rows,
    measure_table,
    row_cases,
    time_case,
    write_table,
)

ON_CPU = [layer for layer in LAYERS if layer != "pointwise"]


@pytest.fixture(autouse=True)
def _processor(monkeypatch):
    """A processor with the native library, whatever this one is."""
    monkeypatch.setattr(choice, "instruction_set", lambda: "avx2")


def ratios(*native):
    return [{"simulate": 1.0, "native": each} for each in native]


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ((3.0, 2.0, 0.9, 0.5), "ssnn"),
        ((0.9, 0.8, 1.3, 0.5, 0.4), "nnnnn"),  # noise at one size
        ((1.3, 1.2, 0.97, 1.2, 1.3), "sssss"),
        ((1.04, 1.04), "nn"),  # a quarter of the memory
        ((1.06, 1.06), "ss"),
        ((0.5, 0.5, 3.0, 3.0), "nnss"),
    ],
)
def test_kernels_change_along_the_sizes_where_that_gains(times, chosen):
    assert "".join(name[0] for name in choose_kernels(ratios(*times))) == chosen


def test_neighbouring_sizes_become_one_row_with_the_mean_ratio():
    times = dict(zip((100, 200, 300), ratios(2.0, 0.9, 0.4), strict=True))
    rows = make_rows("avx2", "linear", 7, times, rows_from=32)
    options = {"processor": "avx2", "layer": "linear", "top": 7}
    assert rows == [
        TableRow(macs_from=0, rows_from=0, kernel="simulate", ratio=1.0, **options),
        TableRow(macs_from=200, rows_from=32, kernel="native", ratio=0.6, **options),  # sqrt(0.36)
    ]


@pytest.mark.parametrize(
    ("times", "rows"),
    [
        ((3.0, 1.2, 0.8, 0.5), 30),
        ((0.9, 0.8, 0.8, 0.5), 0),
        ((3.0, 0.5, 3.0, 0.3), 40),
        ((3.0, 2.0, 2.0, 1.5), 80),  # it never pays at the sizes that were tried
    ],
)
def test_the_rows_from_which_codes_pay(times, rows):
    assert find_rows_from(dict(zip((10, 20, 30, 40), ratios(*times), strict=True))) == rows
    assert find_rows_from({}) == 0


def test_the_ladder_has_every_kind_of_layer_from_small_to_large():
    pytest.importorskip("torch_geometric")
    for layer in ON_CPU:
        sizes = [case.macs for case in cases() if case.layer == layer]
        assert sizes == sorted(set(sizes))
        assert sizes[0] < 1 << 15
        assert sizes[-1] > 1 << 25
    assert count_cases() == len(TOPS) * (len(cases()) + len(row_cases()))
    assert {case.layer for case in row_cases()} == {"linear", "convolution"}


def test_graph_layers_are_left_out_where_their_package_is_missing(monkeypatch):
    monkeypatch.setattr(tune, "find_spec", lambda name: None)
    assert {case.layer for case in cases()} == set(ON_CPU) - {"node"}


def test_a_case_is_the_kind_and_size_that_a_layer_decides_by(monkeypatch):
    pytest.importorskip("torch_geometric")
    seen = []

    def decide(geometry, a, w, *, tops, recurrence, has_rows, has_bf16, **formats):
        macs = geometry.macs(a.shape, w.shape) + (recurrence.macs if recurrence else 0)
        weights = w.numel() + (prod(recurrence.w_shape) if recurrence else 0)
        rows = macs // weights
        seen.append((layer_kind(geometry, w, recurrence, has_rows), macs, rows, max(tops[:2])))
        assert recurrence is None or isinstance(recurrence, Recurrence)
        return choice.make_kernel("simulate"), "auto"

    monkeypatch.setattr("bitcycle.nn.layer.decide_kernel", decide)
    small = [next(case for case in cases() if case.layer == layer) for layer in ON_CPU]
    small.append(row_cases()[0])
    for case in small:
        LayerStep(case, "auto", 7)()
    assert seen == [(case.layer, case.macs, case.rows, 7) for case in small]


def test_every_kernel_is_timed_with_all_three_products():
    case = next(case for case in cases() if case.layer == "linear")
    step = LayerStep(case, "native", 4)
    step()
    assert list(time_case(case, 8, repeats=1)) == ["simulate", "native"]


def test_without_the_library_there_is_nothing_to_measure(monkeypatch):
    monkeypatch.setattr(choice, "instruction_set", lambda: None)
    with pytest.raises(ValueError, match="native"):
        measure_table()


def test_a_measurement_covers_all_layers_and_leaves_the_generator_alone(monkeypatch):
    pytest.importorskip("torch_geometric")
    seconds = {"simulate": 1.0, "native": 0.5}
    monkeypatch.setattr(tune, "time_case", lambda case, top, device, repeats: seconds)
    before, places, lines = torch.get_rng_state(), [], []
    rows = measure_table(advance=places.append, say=lines.append)
    assert [(row.layer, row.top) for row in rows] == [(x, top) for x in ON_CPU for top in TOPS]
    assert {(row.processor, row.macs_from, row.kernel, row.ratio) for row in rows} == {
        ("avx2", 0, "native", 0.5)
    }
    assert places == list(range(1, count_cases() + 1))
    assert len(lines) == count_cases()
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_of_other_processors_stay_in_the_file(tmp_path):
    path = tmp_path / "kernels.csv"

    def row(processor, ratio):
        return TableRow(
            processor=processor, layer="linear", top=8, macs_from=0, rows_from=0, kernel="native",
            ratio=ratio,
        )  # fmt: skip

    write_table(path, [row("avx2", 0.5)])
    write_table(path, [row("avx512_vnni", 0.4)])
    write_table(path, [row("avx2", 0.6)])
    assert read_table(path) == (row("avx512_vnni", 0.4), row("avx2", 0.6))
    assert list(tmp_path.iterdir()) == [path]
    comments = [line for line in path.read_text().splitlines() if line.startswith("# avx")]
    assert [line.partition(":")[0] for line in comments] == ["# avx512_vnni", "# avx2"]
