"""bitcycle doctor."""

import json
import signal
import subprocess
import sys

import pytest
import torch

from bitcycle.kernels.base import KERNELS
from bitcycle_lab.cli.main import main
from bitcycle_lab.doctor import times
from tests.bitcycle_lab.doctor.kernels import Raising, SlightlyWrong
from tests.bitcycle_lab.doctor.small import make_small

WIDTH = 100


@pytest.fixture
def small(monkeypatch, tmp_path):
    make_small(monkeypatch)
    tiny = (times.linear(8, 4),)
    monkeypatch.setattr(times, "timed_layers", lambda device: tiny)
    monkeypatch.chdir(tmp_path)


def test_the_report_is_printed_and_written(small, tmp_path, capsys):
    assert main(["doctor", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= WIDTH
    data = json.loads((tmp_path / "bitcycle-doctor.json").read_text())
    assert data["failed"] == []
    assert data["device"] == "cpu"
    assert data["machine"]["versions"]["torch"] == torch.__version__
    assert {check["by"] for check in data["checks"]} >= set(KERNELS)
    assert {choice["layer"] for choice in data["choices"]} == {"linear"}
    assert [time["kernel"] for time in data["times"]][0] == "float32"
    assert data["times"][0]["seconds"] > 0
    assert list(tmp_path.iterdir()) == [tmp_path / "bitcycle-doctor.json"]


def test_a_wrong_kernel_is_named_and_is_exit_code_1(small, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(KERNELS._entries, "wrong", SlightlyWrong())
    monkeypatch.setitem(KERNELS._entries, "raising", Raising())
    target = tmp_path / "mine.json"
    assert main(["doctor", "--device", "cpu", "--quick", "--output", str(target)]) == 1
    captured = capsys.readouterr()
    assert "FAILED  wrong linear 8: " in captured.out
    assert "FAILED  raising linear 8: RuntimeError: no such instruction" in captured.out
    assert "Traceback" not in captured.out + captured.err
    data = json.loads(target.read_text())
    assert data["failed"] == ["raising", "wrong"]
    assert data["times"] == []


def test_json_is_all_that_is_printed_and_no_file_is_written(small, capsys, tmp_path):
    assert main(["doctor", "--device", "cpu", "--quick", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "doctor"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--device", "tpu"], "'tpu'"),
        (["--device", "meta"], "'meta'"),
        (["--output", "no/such/folder/x.json"], "no/such/folder"),
        (["--output", "."], "is a folder"),
    ],
)
def test_a_bad_value_is_one_line(more, message, capsys):
    assert main(["doctor", "--quick", *more]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_missing_gpu_is_one_line_with_the_reason(device, capsys):
    assert main(["doctor", "--device", device]) == 2
    assert f"there is no device {device!r}: " in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_an_error_after_the_text(small, monkeypatch, capsys):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("bitcycle.files.write_bytes", full)
    assert main(["doctor", "--device", "cpu", "--quick"]) == 1
    captured = capsys.readouterr()
    assert "self-test" in captured.out
    assert captured.err == "bitcycle: error: [Errno 28] No space left on device\n"


def test_ctrl_c_ends_it_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "bitcycle", "doctor", "--device", "cpu"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().startswith("[1/4]")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == "bitcycle: interrupted\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_whole_of_it_passes_on_this_machine(tmp_path, capsys):
    target = tmp_path / "report.json"
    assert main(["doctor", "--device", "cpu", "--quick", "--output", str(target)]) == 0
    data = json.loads(target.read_text())
    assert sum(check["outcome"] == "passed" for check in data["checks"]) > 150
