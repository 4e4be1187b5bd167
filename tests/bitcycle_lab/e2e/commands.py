"""Runs as real processes: started through the command line, watched, signalled, read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bitcycle_lab.train import CheckpointConfig, EvalConfig, RunConfig, TrackingConfig
from bitcycle_lab.train.config_file import to_yaml
from tests.bitcycle_lab.train.small import folder_of, small

# `bitcycle train`, whose step 50 waits for a file
WAITING = """
import sys, time
from pathlib import Path
from bitcycle_lab.cli.main import main
from bitcycle_lab.train import loop
here, go, config = map(Path, sys.argv[1:])
step = loop.train_step
def waiting(session, micro_batches):
    if session.step == 50:
        here.touch()
        while not go.exists():
            time.sleep(0.1)
    step(session, micro_batches)
loop.train_step = waiting
sys.exit(main(["train", str(config)]))
"""

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def long(output: Path, **changes: Any) -> RunConfig:
    """Some seconds of training: long enough to be interrupted in the middle."""
    settings: dict[str, Any] = {
        "steps": 500,
        "eval": EvalConfig(every=0),
        "checkpoint": CheckpointConfig(every=40),
        "tracking": TrackingConfig(log_every=5, tensorboard=False),
    }
    return small(output, **{**settings, **changes})


def write_config(config: RunConfig, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    return path


@contextmanager
def process(*arguments: str, code: str | None = None, **options: Any) -> Iterator[Any]:
    """`python -m bitcycle` (or some code) with these arguments, never left behind."""
    start: Sequence[str] = ["-m", "bitcycle"] if code is None else ["-c", code]
    child = subprocess.Popen(
        [sys.executable, *start, *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def messages(errors: str) -> str:
    """What a command wrote to standard error besides the library's log."""
    is_log = re.compile(r"bitcycle: \d+ of \d+ modules")
    return "".join(line for line in errors.splitlines(True) if not is_log.match(line))


def training(config: RunConfig, **options: Any) -> Any:
    """`bitcycle train` of this configuration."""
    path = write_config(config, Path(config.output).parent)
    return process("train", str(path), **options)


@contextmanager
def waiting_in_step_50(config: RunConfig) -> Iterator[tuple[Any, Path]]:
    """`bitcycle train` that has got to step 50, and the file that lets it continue."""
    folder = Path(config.output).parent
    path, here, go = write_config(config, folder), folder / "here", folder / "go"
    with process(str(here), str(go), str(path), code=WAITING) as child:
        wait_until(here.exists, child)
        yield child, go


def wait_until(condition: Callable[[], bool], child: Any, seconds: float = 90) -> None:
    """Poll; a process that ends before is a failure with its error message."""
    until = time.monotonic() + seconds
    while not condition():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def has_lines(config: RunConfig, number: int) -> Callable[[], bool]:
    """Whether the run has written so many lines of metrics."""
    path = folder_of(config) / "metrics.jsonl"
    return lambda: path.exists() and path.read_bytes().count(b"\n") >= number


# the small language run of a folder, begun or resumed; a third argument: stopped in that step
LANGUAGE = """
import os, signal, sys
from pathlib import Path
from bitcycle_lab.cli.main import main
from bitcycle_lab.train import loop
config, stop = sys.argv[1], int(sys.argv[2])
step = loop.train_step
def stopping(session, micro_batches):
    if session.step == stop and session.is_main:
        os.kill(os.getpid(), signal.SIGTERM)
    step(session, micro_batches)
loop.train_step = stopping
sys.exit(main(["train", config, "--resume", "auto"]))
"""


def two_processes(folder: Path, config: RunConfig, stop: int = -1) -> Any:
    """Train with two processes, of which one is asked to stop in a step; the finished launcher."""
    script = folder / "language.py"
    folder.mkdir(parents=True, exist_ok=True)
    script.write_text(LANGUAGE, encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = [str(script), str(write_config(config, folder)), str(stop)]
    return subprocess.run(
        [*launcher, *arguments],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
