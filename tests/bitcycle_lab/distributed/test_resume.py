"""Runs that resume with another number of processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bitcycle.distributed.launch import run_together

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "name": "grow",
    "model": {"name": "digits_convnet", "options": {"width": 8}},  # no batch statistics
    "data": {"batch_size": 64, "validation": 200},
    "optimizer": {"lr": 0.05},
    "precision": {
        "forward": "CR:3-8:2",
        "backward": 8,
        "kernel": "simulate",
        "quantizer_options": {"sync_ranges": True, "error_rounding": "nearest"},
    },
    "eval": {"every": 10},
    "tracking": {"log_every": 5, "tensorboard": False},
    "steps": 30,
    "threads": 1,
}
FLOAT32 = {"forward": "fp32", "backward": "fp32"}
STOP = 12  # in the middle of a line of metrics, which is of 5 steps


def command(argv: list[str], stops_at: int | None = None) -> dict[str, Any]:
    """`bitcycle` as torchrun starts it; stopped by SIGTERM when asked to be."""
    import bitcycle_lab.train.loop as loop
    from bitcycle_lab.cli.main import main

    train_step = loop.train_step

    def watched(session: Any, micro_batches: Any) -> None:
        train_step(session, micro_batches)
        if session.step + 1 == stops_at:
            os.kill(os.getpid(), signal.SIGTERM)

    loop.train_step = watched
    said = StringIO()
    with redirect_stderr(said):
        code = main(argv)
    return {"code": code, "said": said.getvalue()}


def start(folder: Path, num_processes: int, argv: list[str], **options: Any) -> list[Any]:
    return run_together(command, num_processes, folder, has_group=False, argv=argv, **options)


def trained(folder: Path, sizes: list[int], **changes: Any) -> tuple[Path, list[Any]]:
    """A run begun by sizes[0] processes and, if there is a second number, finished by those."""
    folder.mkdir()
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({**SETTINGS, "output": str(folder / "runs"), **changes}))
    stop = {} if len(sizes) == 1 else {"stops_at": STOP}
    begun = start(folder, sizes[0], ["train", str(config), "--quiet"], **stop)
    run = folder / "runs" / "grow-seed0"
    if len(sizes) == 1:
        assert [each["code"] for each in begun] == [0] * sizes[0], begun
        return run, begun
    assert all(each["code"] != 0 for each in begun)
    ended = start(folder, sizes[1], ["resume", str(run), "--quiet"])
    assert [each["code"] for each in ended] == [0] * sizes[1], ended
    return run, ended


def lines_of(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: v for key, v in line.items() if key != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Never interrupted, in one process: float32, and quantized."""
    folder = tmp_path_factory.mktemp("whole")
    return {
        "float32": lines_of(trained(folder / "float32", [1], precision=FLOAT32)[0]),
        "quantized": lines_of(trained(folder / "quantized", [1])[0]),
    }


@pytest.mark.parametrize("sizes", [[2, 1], [1, 2]])
def test_a_float32_run_resumes_as_if_nothing_had_happened(tmp_path, whole, sizes):
    """Every line of metrics too: the sums of a line that was begun are those of all processes."""
    run, _ = trained(tmp_path / "run", sizes, precision=FLOAT32)
    for line, expected in zip(lines_of(run), whole["float32"], strict=True):
        assert line["step"] == expected["step"]
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        assert line["accuracy"] == pytest.approx(expected["accuracy"], abs=1e-6)


@pytest.mark.parametrize("sizes", [[2, 1], [1, 2]])
def test_bits_rate_and_cost_of_a_quantized_run_are_exact(tmp_path, whole, sizes):
    run, ended = trained(tmp_path / "run", sizes)
    for line, expected in zip(lines_of(run), whole["quantized"], strict=True):
        for key in ("step", "kind", "bits", "lr", "bitops"):
            assert line.get(key) == expected.get(key)
        assert line["loss"] == pytest.approx(expected["loss"], rel=0.1)
    note = f"written by {sizes[0]} processes and {sizes[1]} resume it"
    assert ended[0]["said"].count(note) == 1
    assert all(note not in other["said"] for other in ended[1:])
    assert (run / "log.txt").read_text().count(note) == 1


def resume_apart(folders: list[str]) -> dict[str, Any]:
    """Each process in a folder of its own, as on machines that share no filesystem."""
    return command(["resume", folders[int(os.environ["RANK"])], "--quiet"])


def test_processes_that_see_different_checkpoints_are_an_error_at_once(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**SETTINGS, "output": str(tmp_path / "runs")}))
    start(tmp_path, 1, ["train", str(config), "--quiet"], stops_at=STOP)
    run = tmp_path / "runs" / "grow-seed0"
    other = Path(shutil.copytree(run, tmp_path / "other"))
    shutil.rmtree(other / "checkpoints")
    folders = [str(run), str(other)]
    ended = run_together(resume_apart, 2, tmp_path, has_group=False, folders=folders)
    assert [each["code"] for each in ended] == [1, 1], ended
    assert all("different steps" in each["said"] for each in ended)
    assert "(12, none, by rank)" in ended[0]["said"]


def draw_after_loading(config: dict[str, Any]) -> float:
    """A number that dropout would draw, in a run that was begun by one process."""
    import torch

    from bitcycle_lab.train.config_file import from_dict
    from bitcycle_lab.train.session import build_session

    session = build_session(from_dict(config))
    state = session.state_dict()
    state["run"]["ranks"] = state["run"]["ranks"][:1]
    session.load_state_dict(state)
    return torch.rand(()).item()


def test_processes_that_are_added_draw_numbers_of_their_own(tmp_path):
    config = {**SETTINGS, "output": str(tmp_path)}
    first, second = run_together(draw_after_loading, 2, tmp_path, has_group=False, config=config)
    assert first != second
