"""bitcycle bench."""

import json

import pytest

from bitcycle.bench import BenchResult
from bitcycle.cli.main import main
from bitcycle.train.run_directory import machine

QUICK = ["bench", "--quick", "--repeats", "2"]


def test_a_quick_measurement_prints_the_table_and_writes_the_file(tmp_path, capsys):
    target = tmp_path / "speed.json"
    chosen = ["--workload", "lstm", "--workload", "transformer-d512", "--bits", "FW7/BW8"]
    kernels = ["--kernels", "simulate", "auto"]
    assert main([*QUICK, *chosen, *kernels, "--json", str(target)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("[1/2] lstm\n[2/2] transformer-d512\n")
    assert "int8 products exact up to" in out
    assert "w7a7e8" in out
    assert f"wrote {target}" in out
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
    ],
)
def test_a_bad_value_is_one_line(more, message, capsys):
    assert main([*QUICK, *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_all_of_it_runs(capsys):
    assert main(QUICK) == 0
    out = capsys.readouterr().out
    for name in ("resnet20-w16", "resnet20-w64", "bottleneck", "transformer-d1024", "gcn"):
        assert f"\n{name} " in out
