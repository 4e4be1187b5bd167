"""Runs of two processes: started by torchrun as a user would, or forked where that is the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

import bitcycle as bc
from bitcycle_lab.train import loop, run
from bitcycle_lab.train.config_file import read_config
from bitcycle_lab.train.final_evaluation import weights_digest
from tests.bitcycle.distributed.launch import run_together

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "name": "dist",
    # no batch statistics, ranges over all processes and nothing random: what one process computes
    "model": {"name": "digits_convnet", "options": {"width": 8}},
    "data": {
        "batch_size": 64,
        "validation": 200,
    },  # 1237 to train on: the last batch is 21 = 10 + 11
    "optimizer": {"lr": 0.05},
    "precision": {
        "forward": "CR:3-8:2",
        "backward": 8,
        "quantizer_options": {"sync_ranges": True, "error_rounding": "nearest"},
    },
    "eval": {"every": 10},
    "checkpoint": {"every": 10},
    "tracking": {"log_every": 1, "tensorboard": False},
    "steps": 40,
    "threads": 1,
}
FLOAT32 = {"forward": "fp32", "backward": "fp32"}


def write_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**SETTINGS, "output": str(folder / "runs"), **changes}))
    return path


def start(folder: Path, *argv: str) -> subprocess.Popen[str]:
    """`bitcycle` with these arguments in two processes of torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "bitcycle", *argv],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output and errors; a hang is a failure."""
    try:
        out, err = process.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def trained(folder: Path, *, num_processes: int, **changes: Any) -> Path:
    """The folder of a run that went through, in forked processes."""
    folder.mkdir()
    path = write_config(folder, **changes)
    run_together(train, num_processes, folder, has_group=False, config=path)
    return folder / "runs" / "dist-seed0"


def train(config: str) -> None:
    run(read_config(config), show="quiet")


def lines_of(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def result_of(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return result


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run in one process and in two of torchrun."""
    folder = tmp_path_factory.mktemp("pair")
    one = trained(folder / "one", num_processes=1)
    (folder / "two").mkdir()
    path = write_config(folder / "two")
    code, out, err = finish(start(folder / "two", "train", str(path), "--quiet"))
    assert code == 0, err
    assert len(out.splitlines()) == 2  # said once, not by every process
    return one, folder / "two" / "runs" / "dist-seed0"


def test_two_processes_train_what_one_trains(pair):
    """To float tolerance, until a sum's last digit moves a value across a rounding border."""
    one, two = (lines_of(run, "train") for run in pair)
    assert len(one) == len(two) == 40
    for single, double in zip(one[:4], two[:4], strict=True):
        assert double["loss"] == pytest.approx(single["loss"], rel=1e-5)
    final = [result_of(run)["final"]["loss"] for run in pair]
    assert final[1] == pytest.approx(final[0], rel=0.05)


def test_without_rounding_they_are_equal_to_the_end(tmp_path):
    one = trained(tmp_path / "one", num_processes=1, precision=FLOAT32)
    two = trained(tmp_path / "two", num_processes=2, precision=FLOAT32)
    for single, double in zip(lines_of(one, "train"), lines_of(two, "train"), strict=True):
        assert double["loss"] == pytest.approx(single["loss"], rel=1e-4)
    weights = [load_file(run / "checkpoints/step-00000040/model.safetensors") for run in (one, two)]
    for name, value in weights[0].items():
        assert (weights[1][name] - value).abs().max() < 1e-4, name


def test_bits_and_cost_are_those_of_one_process(pair):
    one, two = (lines_of(run, "train") for run in pair)
    assert [line["bits"] for line in two] == [line["bits"] for line in one]
    assert {line["bits"]["weight"] for line in two} == {3, 4, 5, 6, 7, 8}
    assert result_of(pair[1])["cost"] == result_of(pair[0])["cost"]


def test_every_sample_counts_once_in_the_metrics(pair):
    """Validation accuracy is a whole number of the 200 images, training accuracy of the batch."""
    for line in lines_of(pair[1], "eval"):
        hits = line["accuracy"] * 200 / 100
        assert hits == pytest.approx(round(hits), abs=1e-6)
    sizes = [21 if line["step"] % 20 == 0 else 64 for line in lines_of(pair[1], "train")]
    for line, size in zip(lines_of(pair[1], "train"), sizes, strict=True):
        hits = line["accuracy"] * size / 100
        assert hits == pytest.approx(round(hits), abs=1e-6)


def test_only_one_process_writes(pair):
    log = (pair[1] / "log.txt").read_text()
    assert log.count("step 40/40") == 1
    assert log.count("done: test accuracy") == 1
    names = [sorted(str(p.relative_to(run)) for p in run.rglob("*")) for run in pair]
    assert names[0] == names[1]


def watched(config: str) -> dict[str, Any]:
    """The bits of every step of a run, and its weights."""
    seen, models, train_step = [], [], loop.train_step

    def watching(session: Any, micro_batches: Any) -> None:
        seen.append(str(bc.get_precision(session.model)))
        models[:] = [session.model]
        train_step(session, micro_batches)

    loop.train_step = watching  # of this process, which ends
    run(read_config(config))
    return {"bits": seen, "weights": weights_digest(models[0])}


def test_processes_agree_on_weights_and_on_bits_that_follow_the_training(tmp_path):
    """Each has other batches, and so another loss and other noise."""
    precision = {
        "forward": "plateau:3-20:window=1:patience=0:threshold=0",  # every single loss counts
        "backward": "noise:2,4,8:every=5",
    }
    path = write_config(tmp_path, precision=precision)
    first, second = run_together(watched, 2, tmp_path, has_group=False, config=path)
    assert first == second
    assert len(set(first["bits"])) > 4


def test_every_process_has_the_same_bits_and_weights_and_again_the_same(pair, tmp_path):
    path = write_config(tmp_path)
    first, second = run_together(watched, 2, tmp_path, has_group=False, config=path)
    assert first == second
    assert len(set(first["bits"])) == 6  # 3 to 8
    assert first["weights"] == result_of(pair[1])["weights_sha256"]


def test_a_run_stopped_by_sigterm_resumes_to_the_same_weights(pair, tmp_path):
    path = write_config(tmp_path)
    run = tmp_path / "runs" / "dist-seed0"
    process = start(tmp_path, "train", str(path), "--quiet")
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    while len((run / "metrics.jsonl").read_text().splitlines()) < 3:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code != 0
    assert err.count("bitcycle: stopped at step") == 1
    assert not (run / "result.json").exists()
    code, out, err = finish(start(tmp_path, "resume", str(run)))
    assert code == 0, err
    assert out.count("resumed at step") == 1
    assert result_of(run)["weights_sha256"] == result_of(pair[1])["weights_sha256"]


def test_all_processes_find_the_same_lower_end(tmp_path):
    """The test's metric is that of the whole batch, and its weights those of one process."""
    changes = {
        "precision": {**SETTINGS["precision"], "forward": "CR:auto-8:2"},
        "range_test": {
            "criterion": "paper",
            "steps_per_precision": 10,
            "window": 3,
            "threshold": 3.0,
        },
    }
    found = [
        result_of(trained(tmp_path / str(number), num_processes=number, **changes))["range_test"]
        for number in (1, 2)
    ]
    one, two = (each["test"]["runs"][0]["metric"] for each in found)
    assert two[:3] == pytest.approx(one[:3], abs=1e-6)
    lows = [each["test"]["low"] for each in found]
    assert lows[0] == lows[1]
    assert lows[1] == json.loads((tmp_path / "2/runs/dist-seed0/metrics.jsonl").read_text()
                                 .splitlines()[0])["low"]  # fmt: skip


def test_a_folder_that_is_taken_ends_all_processes_with_one_message(pair, tmp_path):
    path = write_config(tmp_path, output=str(pair[1].parent))
    code, out, err = finish(start(tmp_path, "train", str(path)))
    assert code != 0
    assert out == ""
    assert err.count("bitcycle: error: ") == 1
    assert err.count("is not empty") == 1
    assert "[process 1]" not in err


def test_a_run_that_another_process_holds_ends_all_with_one_message(pair, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    run = shutil.copytree(pair[1], tmp_path / "run")
    (run / "result.json").unlink()
    with (run / ".lock").open("a+") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        code, _, err = finish(start(tmp_path, "resume", str(run)))
    assert code != 0
    assert err.count("another process trains this run") == 1


def caught(config: str) -> str:
    with pytest.raises(ValueError, match="is not empty") as error:
        run(read_config(config))
    return str(error.value)


def test_run_raises_in_every_process(tmp_path):
    (tmp_path / "runs" / "dist-seed0").mkdir(parents=True)
    (tmp_path / "runs" / "dist-seed0" / "notes.txt").write_text("mine")
    path = write_config(tmp_path)
    texts = run_together(caught, 2, tmp_path, has_group=False, config=path)
    assert texts[0] == texts[1]
