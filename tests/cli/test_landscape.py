"""bitcycle landscape."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bitcycle.cli.main import main
from tests.cli.runs import write_config
from tests.landscape.test_result import make

SMALL = ["--grid", "3", "--samples", "50"]


@pytest.fixture(scope="module")
def runs(finished, tmp_path_factory):
    folder = tmp_path_factory.mktemp("landscape")
    shutil.copytree(finished, folder / "runs" / "tiny-seed0")
    assert main(["train", str(write_config(folder)), "--quiet", "--seed", "1"]) == 0
    return [str(folder / "runs" / f"tiny-seed{seed}") for seed in (0, 1)]


@pytest.mark.slow
def test_several_runs_get_an_estimate_a_table_their_numbers_and_one_picture(runs, tmp_path, capsys):
    assert main(["landscape", *runs, *SMALL, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 runs x 3 x 3 = 18 points, 50 samples each, ranges: batch\n")
    assert "about 0:0" in out
    assert "18/18 points" in out
    assert "tiny-seed1  w8a8" in out
    assert "rise r=0.25" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "landscape.png", "tiny-seed0.landscape.json", "tiny-seed1.landscape.json",
    ]  # fmt: skip
    assert main(["landscape", *runs, *SMALL, "--output", str(tmp_path)]) == 0
    again = capsys.readouterr().out
    assert "all points are computed already" in again
    assert out.split("\n\n")[1] == again.split("\n\n")[1]  # the table


def test_one_run_has_its_numbers_and_its_picture_in_its_folder(runs, capsys):
    run = runs[0]
    assert main(["landscape", run, *SMALL, "--precision", "w4a4", "--level", "9"]) == 0
    out = capsys.readouterr().out
    data = json.loads(Path(run, "landscape.json").read_text())
    assert (data["precision"], data["num_samples"], data["seed"]) == ("w4a4", 50, 0)
    assert len(data["losses"]) == 3
    assert "area < 9" in out
    assert f"picture: {run}/landscape.png" in out
    assert main(["landscape", run, *SMALL]) == 2
    assert "holds another surface" in capsys.readouterr().err


def test_weights_of_an_unfinished_run_are_said_to_be(runs, tmp_path, capsys):
    run = tmp_path / "tiny-seed0"
    shutil.copytree(runs[0], run)
    (run / "result.json").unlink()
    assert main(["landscape", str(run), *SMALL, "--output", str(tmp_path)]) == 0
    steps = json.loads(Path(runs[0], "result.json").read_text())["steps"]
    said = f"the run is not finished, these are the weights of step {steps}\n"
    assert capsys.readouterr().out.count(said) == 1


def test_the_centre_is_what_eval_says(runs, tmp_path, capsys):
    file = tmp_path / "tiny-seed1.landscape.json"
    make().write(file)  # of something else
    options = ["--samples", "all", "--ranges", "observed", "--grid", "3", "--replace"]
    assert main(["landscape", runs[1], *options, "--output", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["eval", runs[1], "--split", "train", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    data = json.loads(file.read_text())
    assert data["center"] == row["metrics"]["loss"]
    assert data["num_samples"] == 160


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--grid", "10"], "must be odd and at least 3"),
        (["--samples", "0"], "samples (0)"),
        (["--precision", "w99"], "got 99"),
        (["--samples", "few"], "expected a number or all"),
        (["--jobs", "0"], "jobs (0)"),
        (["--quit"], "unknown option '--quit'; --help lists the options of the command"),
        (["--replac"], "did you mean '--replace'?"),
        (["--data.rot", "x"], "did you mean '--data.root'?"),
    ],
)
def test_a_bad_value_is_an_error_that_names_it(options, part, runs, capsys):
    assert main(["landscape", runs[1], *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert part in captured.err


def test_what_is_not_a_run_or_not_a_folder_is_an_error(runs, tmp_path, capsys):
    assert main(["landscape", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["landscape", runs[0], "--output", str(tmp_path / "file")]) == 2
    assert "is a file; give a folder" in capsys.readouterr().err


def command(run, output, *options):
    return [sys.executable, "-m", "bitcycle.cli.main", "landscape", run, "--grid", "25",
            "--samples", "100", "--output", str(output), *options]  # fmt: skip


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as handle:
        return [int(child) for child in handle.read().split()]


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as handle:
            return handle.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def undisturbed(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    subprocess.run(command(runs[0], folder), check=True, capture_output=True)
    return numbers(folder / "tiny-seed0.landscape.json")


def numbers(path):
    """All of a file but how long it took, and by how many processes."""
    data = json.loads(path.read_text())
    return {key: value for key, value in data.items() if key not in ("seconds", "jobs")}


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_command_leaves_no_process_and_resumes_to_the_same_numbers(
    signum, runs, undisturbed, tmp_path
):
    process = subprocess.Popen(
        command(runs[0], tmp_path, "--jobs", "2"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:  # some points are there
        kept = list(tmp_path.glob("*.partial-*"))
        if kept and kept[0].read_text().count("\n") > 20:
            break
        time.sleep(0.02)
    children = children_of(process.pid)
    os.killpg(process.pid, signum) if signum == signal.SIGINT else process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    if signum == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 128 + signum
        assert errors.startswith("bitcycle: stopped; ")
        assert "Traceback" not in errors
    deadline = time.monotonic() + 20
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [child for child in children if is_alive(child)]
    assert len(children) >= 2
    subprocess.run(command(runs[0], tmp_path), check=True, capture_output=True)
    assert numbers(tmp_path / "tiny-seed0.landscape.json") == undisturbed
