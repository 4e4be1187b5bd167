"""The page of a measurement."""

import pytest

from bitcycle.report.evidence.speed import gather_speed, is_speed, render_speed
from tests.report.evidence.made import MACHINE_LINE, bench_file, bench_row, without_made


def page(**changes):
    return render_speed("speed", gather_speed([bench_file(**changes)]))


def test_what_is_slower_than_float32_is_said_plainly():
    text = page().files["speed.md"]
    assert "Slower than float32: simulate FW8/BW8 (3.00)." in text
    assert "| int8 | FW8/BW8 | 5.0 | 6.0 | 0.50 | 4 | 2.0 | int8 2, bf16 1 | faster |" in text
    assert "| bf16 | FW8/BW8 | 10.5 | 12.0 | 1.05 | 4 |" in text
    assert text.count("| within noise |") == 1
    assert "| dequantize | FW8/BW8 | 500.0 | 500.0 | 50.00 | 1 |" in text
    assert "- torchao is not installed" in text


def test_the_sentence_counts_and_names_the_best():
    assert page().sentence == (
        "Of 4 measured variants against float32: 1 faster, 1 within noise, 1 slower, 1 measured "
        "once. The best: int8 FW8/BW8 on lstm, 0.50 of float32's time."
    )
    rows = [bench_row("float32", (0.01, 0.01), bits=""), bench_row("simulate", (0.03, 0.04))]
    assert "Nothing is faster than float32 on this machine." in page(rows=rows).sentence


def test_the_same_work_measured_twice_says_how_much_is_noise():
    same = {"layers": {"a": ["simulate/bf16/simulate", "auto chose it"]}}
    rows = [
        bench_row("float32", (0.01, 0.01), bits="", layers={}),
        bench_row("simulate", (0.020, 0.021)),
        bench_row("auto", (0.022, 0.023), **same),
        bench_row("auto", (0.9, 0.9), bits="FW7/BW8", **same),
    ]
    assert (
        "1 of them do the same work as another (the same products by the same kernels) and are up "
        "to 10 % apart: so much is noise." in page(rows=rows).sentence
    )


def test_what_was_not_measured_is_not_called_fast():
    left_out = page(sizes={"lstm": "2 LSTM layers", "gcn": "left out: needs torch_geometric"})
    text = left_out.files["speed.md"]
    assert "## gcn\n\nleft out: needs torch\\_geometric.\n" in text
    assert "Nothing is slower" not in text
    once = [
        bench_row("float32", (0.01, 0.01), bits="", layers={}),
        bench_row("simulate", (0.5,), is_once=True),
    ]
    assert "Not judged against float32." in page(rows=once).files["speed.md"]
    alone = page(rows=[bench_row("simulate", (0.5, 0.6))])
    assert alone.sentence == "Nothing was measured against float32."


def test_the_command_names_all_that_was_measured():
    text = page().files["speed.md"]
    assert (
        "bitcycle bench --threads 1 --repeats 4 --budget 30 --workload lstm --kernels int8 "
        "simulate bf16 dequantize torchao --bits FW8/BW8 --json speed.json" in text
    )


def test_workloads_that_were_left_out_are_not_in_the_command():
    text = page(sizes={"lstm": "2 LSTM layers", "gcn": "left out: a package is missing"}).files
    assert "--workload gcn" not in text["speed.md"]


def test_machine_and_wall_clock_are_told_or_said_to_be_unknown():
    text = page().files["speed.md"]
    assert f"{MACHINE_LINE}.\n\nWall-clock: 1 min 15 s.\n" in text
    old = render_speed("speed", gather_speed([without_made(bench_file())])).files["speed.md"]
    assert "Machine: AMD EPYC, AVX2, torch 2.13.0, 1 thread.\n" in old
    assert "Wall-clock: not recorded.\n" in old
    assert "--repeats 4 --workload lstm" in old


def test_layers_are_not_kept():
    data = gather_speed([bench_file()])
    assert "layers" not in data["rows"][1]
    assert is_speed(bench_file())
    assert not is_speed({"rows": []})


def test_two_measurements_make_no_page():
    with pytest.raises(ValueError, match="2 files of `bitcycle bench`"):
        gather_speed([bench_file(), bench_file()])
