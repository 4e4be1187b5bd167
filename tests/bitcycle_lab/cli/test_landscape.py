"""bitcycle landscape."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bitcycle_lab.cli.main import main
from tests.bitcycle_lab.cli.runs import write_config

SMALL = ["--grid", "3", "--samples", "50"]


@pytest.fixture(scope="module")
def runs(finished, tmp_path_factory):
    folder = tmp_path_factory.mktemp("landscape")
    shutil.copytree(finished, folder / "runs" / "tiny-seed0")
    assert main(["train", str(write_config(folder)), "--quiet", "--seed", "1"]) == 0
    return [str(folder / "runs" / f"tiny-seed{seed}") for seed in (0, 1)]


def test_several_runs_get_a_table_their_numbers_and_one_picture(runs, tmp_path, capsys):
    command = ["landscape", *runs, *SMALL, "--output", str(tmp_path / "new")]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "tiny-seed0: 9/9 points" in out
    assert "tiny-seed1  w8a8" in out
    written = {path.name: path.read_bytes() for path in (tmp_path / "new").glob("*")}
    assert sorted(written) == [
        "landscape.png", "tiny-seed0.landscape.json", "tiny-seed1.landscape.json",
    ]  # fmt: skip
    assert main(command) == 0
    assert capsys.readouterr().out.split("\n\n")[1] == out.split("\n\n")[1]  # the table
    assert all((tmp_path / "new" / name).read_bytes() == written[name] for name in written)


def test_one_run_has_its_numbers_and_its_picture_in_its_folder(runs, capsys):
    run = runs[0]
    assert main(["landscape", run, *SMALL, "--precision", "w4a4"]) == 0
    data = json.loads(Path(run, "landscape.json").read_text())
    assert (data["precision"], data["settings"]["samples"]) == ("w4a4", 50)
    assert len(data["losses"]) == 3
    assert f"picture: {run}/landscape.png" in capsys.readouterr().out
    assert main(["landscape", run, *SMALL]) == 2
    assert "--replace" in capsys.readouterr().err
    assert main(["landscape", run, *SMALL, "--replace"]) == 0
    assert json.loads(Path(run, "landscape.json").read_text())["precision"] == "w8a8"


def test_the_centre_is_the_loss_that_eval_says(runs, tmp_path, capsys):
    options = ["--samples", "all", "--ranges", "observed", "--grid", "3"]
    assert main(["landscape", runs[1], *options, "--output", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["eval", runs[1], "--split", "train", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    data = json.loads((tmp_path / "tiny-seed1.landscape.json").read_text())
    assert data["center"] == row["metrics"]["loss"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--grid", "10"], "10"),
        (["--samples", "0"], "samples (0)"),
        (["--precision", "w99"], "99"),
        (["--samples", "few"], "'few' must be a number or all"),
        (["--quit"], "--quit"),
        (["--replac"], "did you mean '--replace'?"),
        (["--data.rot", "x"], "did you mean '--data.root'?"),
    ],
)
def test_a_bad_value_is_an_error_that_names_it(options, part, runs, capsys):
    assert main(["landscape", runs[1], *options]) == 2
    assert part in capsys.readouterr().err


def test_what_is_not_a_run_or_not_a_folder_is_an_error(runs, tmp_path, capsys):
    assert main(["landscape", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["landscape", runs[0], "--output", str(tmp_path / "file")]) != 0
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_runs_of_one_name_get_their_folder_as_label(runs, tmp_path, capsys):
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    assert main(["landscape", runs[0], str(copy), *SMALL, "--output", str(tmp_path)]) == 0
    assert f"\n{copy} " in capsys.readouterr().out
    assert len(list(tmp_path.glob("*.landscape.json"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_stopped_command_resumes_to_the_same_numbers(signum, code, runs, tmp_path):
    def command(output):
        return [sys.executable, "-m", "bitcycle_lab.cli.main", "landscape", runs[0], "--grid", "25",
                "--samples", "100", "--output", str(output)]  # fmt: skip

    name = "tiny-seed0.landscape.json"
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    process = subprocess.Popen(command(tmp_path / "stopped"), stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (tmp_path / "stopped" / name).exists():
        time.sleep(0.01)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert len(json.loads((tmp_path / "stopped" / name).read_text())["losses"]) < 25
    subprocess.run(command(tmp_path / "stopped"), check=True, capture_output=True)
    whole, resumed = ((tmp_path / part / name).read_bytes() for part in ("whole", "stopped"))
    assert resumed == whole
