"""bitcycle bench."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.kernels.choice import LAYERS, read_table, table_text
from bitcycle.native.library import instruction_set
from bitcycle_lab.bench import BenchResult
from bitcycle_lab.cli.main import main
from bitcycle_lab.train.run_directory import machine

needs_library = pytest.mark.skipif(instruction_set() is None, reason="needs the native library")
QUICK = ["bench", "--quick", "--repeats", "2"]


def test_a_quick_measurement_prints_the_table_and_writes_the_file(tmp_path, capsys):
    target = tmp_path / "speed.json"
    chosen = ["--workload", "lstm", "--workload", "transformer-d512", "--bits", "FW7/BW8"]
    kernels = ["--kernels", "simulate", "auto"]
    assert main([*QUICK, *chosen, *kernels, "--json", str(target)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("[1/2] lstm\n[2/2] transformer-d512\n")
    assert "native library" in out
    assert "w7a7e8" in out
    assert f"wrote {target}" in out
    sizes = out.partition("\nlstm: ")[2].splitlines()
    assert sizes[:4] == [
        "2 LSTM layers of 32 units, 100 words, batch 4, 8 steps",
        "  instead of 2 LSTM layers of 650 units, 10,000 words, batch 20, 35 steps",
        "transformer-d512: 2 transformer blocks of width 64, 2x32 tokens",
        "  instead of 2 transformer blocks of width 512, 8x256 tokens",
    ]
    assert "--quick ran smaller networks than the benchmark's" in out
    assert "its times and ratios say nothing about speed" in out
    data = json.loads(target.read_text())
    result = BenchResult.from_dict(data)
    assert len(result.rows) == 2 * 3
    assert data["machine"] == machine()
    assert data["threads"] == data["processor"]["num_threads"]
    assert data["seconds"] == result.seconds
    assert all(row.ratio == 1.0 for row in result.rows if row.kernel == "float32")
    for line in out.splitlines():
        cells = line.split()
        if cells[:2] == ["simulate", "w7a7e8"]:
            shown = {f"{row.ratio:.2f}" for row in result.rows if row.kernel == "simulate"}
            assert cells[4] in shown


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--workload", "resnet20-w61"], "did you mean 'resnet20-w64'?"),
        (["--json", "no/such/folder/x.json"], "there is no folder no/such/folder"),
        (["--repeats", "0"], "repeats must be at least 1, got 0"),
        (["--threads", "0"], "--threads must be at least 1, got 0"),
        (["--tune", "x.csv", "--bits", "FW8/BW8"], "--bits"),
        (["--tune", "no/such/folder/x.csv"], "there is no folder no/such/folder"),
        (["--device", "cuda"], "--tune"),
    ],
)
def test_a_bad_value_is_one_line(more, message, capsys):
    assert main([*QUICK, *more]) == 2
    assert message in capsys.readouterr().err


@needs_library
def test_a_tuned_table_is_written_and_used(tmp_path, capsys, monkeypatch):
    target = tmp_path / "kernels.csv"
    assert main(["bench", "--quick", "--tune", str(target)]) == 0
    out = capsys.readouterr().out
    assert "linear, 16,384 multiply-accumulates, 16 rows, 8 bits: simulate " in out
    assert out.endswith(f"wrote {target}; use it with BITCYCLE_KERNEL_TABLE={target}\n")
    rows = read_table(target)
    assert {row.layer for row in rows} == set(LAYERS) - {"pointwise"}
    first = {(row.layer, row.top): row for row in rows}.values()  # what is fastest varies
    whole = [replace(row, kernel="native", macs_from=0, rows_from=0) for row in first]
    target.write_text(table_text(whole))
    monkeypatch.setenv("BITCYCLE_KERNEL_TABLE", str(target))
    layer = bc.quantize_model(nn.Linear(4, 4))
    bc.set_precision(layer, "w8a8e8")
    layer(torch.ones(2, 4))
    assert bc.audit(layer)[""].kernel == "native"


def test_tune_overwrites_nothing_but_a_table(tmp_path, capsys):
    target = tmp_path / "results.csv"
    target.write_text("seed,accuracy\n0,91.0\n")
    assert main(["bench", "--quick", "--tune", str(target)]) == 2
    assert "its columns must be processor,layer" in capsys.readouterr().err
    assert target.read_text() == "seed,accuracy\n0,91.0\n"


@pytest.mark.slow
def test_all_of_it_runs(capsys):
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    for name in ("resnet20-w16", "resnet20-w64", "bottleneck", "transformer-d1024", "gcn"):
        assert f"\n{name} " in out
