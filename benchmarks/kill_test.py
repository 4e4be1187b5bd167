"""Exact resume under SIGKILL: a run killed many times ends with the weights of one that was not.

    python benchmarks/kill_test.py [--kills 20] [--steps 60] [--seed 0] [--setup convnet|lstm]

A training process is killed at random moments and, every other time, inside the writing of a
checkpoint (before a flush, a rename or a removal, or after half of a file). It is resumed each
time; a run that gets to its end is compared with the uninterrupted one and another is begun.
Prints a row per kill. Exits with 1 when anything but the seconds differs: weights, optimizer,
averaged weights, metrics, bits, cost, result. About two minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # children are forked: no threads before that

from bitcycle_lab.tasks import DataConfig, ModelConfig
from bitcycle_lab.train import (
    CheckpointConfig,
    EvalConfig,
    LrConfig,
    OptimizerConfig,
    PrecisionConfig,
    RunConfig,
    SwaConfig,
    TrackingConfig,
    checkpoint,
)
from bitcycle_lab.train.checkpoint import Checkpoints
from bitcycle_lab.train.run import resume_or_run
from bitcycle_lab.train.session import build_session, preserve_torch_settings


def convnet(output: Path, steps: int) -> RunConfig:
    """Momentum, micro-batches, averaged weights, validation, stochastic rounding of errors."""
    return RunConfig(
        name="convnet",
        model=ModelConfig(name="digits_convnet", options={"width": 4}),
        data=DataConfig(batch_size=32, eval_batch_size=128, subset=400, validation=100),
        optimizer=OptimizerConfig(lr=0.05, momentum=0.9),
        precision=PrecisionConfig(forward="CR:3-8:4", backward=6),
        eval=EvalConfig(every=5),
        checkpoint=CheckpointConfig(every=4),
        swa=SwaConfig(start=0.5, every=3),
        tracking=TrackingConfig(log_every=3, tensorboard=False),
        steps=steps,
        accumulate=2,
        threads=1,
        output=str(output),
    )


def lstm(output: Path, steps: int) -> RunConfig:
    """Dropout, a state carried from step to step, Adam, a rate that follows the validation."""
    text = output.parent / "text"
    if not text.exists():
        text.mkdir(parents=True)
        words = random.Random(0)
        for split, number in (("train", 2000), ("valid", 300), ("test", 300)):
            sentence = " ".join(f"w{words.randrange(50)}" for _ in range(number))
            (text / f"ptb.{split}.txt").write_text(f" {sentence} \n", encoding="utf-8")
    return RunConfig(
        name="lstm",
        task="language",
        model=ModelConfig(name="lstm_lm", options={"embedding_dim": 16, "hidden_dim": 16}),
        data=DataConfig(name="ptb", root=str(text), batch_size=4, sequence_length=10,
                        cache_dir=str(text / "cache")),
        optimizer=OptimizerConfig(name="adam", lr=0.01),
        lr=LrConfig(policy="plateau", gamma=0.5),
        precision=PrecisionConfig(forward="CR:3-8:4", backward=6, only=("decoder",)),
        eval=EvalConfig(every=3),
        checkpoint=CheckpointConfig(every=4),
        tracking=TrackingConfig(log_every=3, tensorboard=False),
        steps=steps,
        threads=1,
        output=str(output),
    )  # fmt: skip


SETUPS: dict[str, Callable[[Path, int], RunConfig]] = {"convnet": convnet, "lstm": lstm}


def die() -> None:
    """As the kernel would have it: no handler, no `finally`, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_inside_a_checkpoint(event: int, note: Path) -> None:
    """Patch what a checkpoint is written with, so that the process dies at the n-th use of it."""
    num_events = 0

    def watch(owner: Any, name: str, *, is_write: bool = False) -> None:
        original = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            nonlocal num_events
            num_events += 1
            if num_events == event:
                when = "half-way through" if is_write else "before"
                note.write_text(f"{when} {name} of {Path(args[0]).name}")
                if is_write:
                    with open(args[0], "wb") as handle:
                        handle.write(bytes(args[1][: len(args[1]) // 2]))
                die()
            return original(*args, **options)

        setattr(owner, name, watched)

    watch(checkpoint, "sync")
    watch(checkpoint.shutil, "rmtree")
    watch(Path, "rename")
    watch(Path, "mkdir")
    watch(Path, "write_bytes", is_write=True)


def start(config: RunConfig, event: int | None, note: Path) -> int:
    """A forked process that begins or resumes the run; its id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        if event is not None:
            die_inside_a_checkpoint(event, note)
        resume_or_run(config)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def wait(pid: int, kill_after: float | None) -> bool:
    """Whether the process ended by itself and well; otherwise it was killed, or we stop."""
    began = time.monotonic()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if kill_after is not None and time.monotonic() - began > kill_after:
            os.kill(pid, signal.SIGKILL)
            kill_after = None
        time.sleep(0.001)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit("kill_test: the run failed; its error is above")
    return True


def traces(directory: Path) -> dict[str, Any]:
    """What must be equal: the result, every metrics line, and the bytes of the last state."""
    result = json.loads((directory / "result.json").read_text())
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for row in (result, *lines):
        row.pop("seconds", None)
    found: dict[str, Any] = {"result.json": result, "metrics.jsonl": lines}
    last = directory / "checkpoints" / f"step-{result['steps']:08d}"
    for file in [*last.iterdir(), *(directory / "checkpoints" / "best").glob("model.*")]:
        if file.name == "run.json":
            found["run.json"] = {**json.loads(file.read_text()), "seconds": None}
        elif file.name == "config.json":  # the runs differ in where they are
            found["config.json"] = {**json.loads(file.read_text()), "output": None}
        elif file.name != "manifest.json":
            found[f"{file.parent.name}/{file.name}"] = file.read_bytes()
    return found


def kill_often(setup: str, num_kills: int, steps: int, seed: int, folder: Path) -> int:
    """Kill, resume, compare; the number of files that differ from the uninterrupted run."""
    moments, note = random.Random(seed), folder / "note"
    make = SETUPS[setup]
    whole = make(folder / setup / "whole", steps)
    with preserve_torch_settings():
        build_session(whole)  # imports what a run needs, once for all children
    began = time.monotonic()
    assert wait(start(whole, None, note), None)
    seconds = time.monotonic() - began
    expected = traces(Path(whole.output) / whole.run_name)
    print(f"{setup}: {steps} steps uninterrupted in {seconds:.1f} s, {num_kills} kills")
    print(f"{'kill':>4}  {'run':>3}  {'last checkpoint':>15}  killed")
    num_runs, num_different, kill = 1, 0, 0
    while kill <= num_kills:
        config = make(folder / setup / f"run{num_runs}", steps)
        directory = Path(config.output) / config.run_name
        is_last = kill == num_kills
        event = moments.randint(1, 70) if kill % 2 and not is_last else None
        after = None if is_last or event else moments.uniform(0, 0.7 * seconds)
        note.unlink(missing_ok=True)
        if wait(start(config, event, note), after):
            different = [k for k, v in traces(directory).items() if expected.get(k) != v]
            different += sorted(expected.keys() - traces(directory).keys())
            num_different += len(different)
            print(f"      {num_runs:>3}  finished: {', '.join(different) or 'bit-identical'}")
            num_runs += 1
            if is_last:
                break
            continue
        kill += 1
        step = max(Checkpoints(directory / "checkpoints").steps(), default=0)
        when = note.read_text() if note.exists() else f"after {after or 0:.2f} s"
        print(f"{kill:>4}  {num_runs:>3}  {step:>15}  {when}")
    return num_different


def main() -> int:
    """Run the set-ups and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="per set-up")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--setup", choices=sorted(SETUPS), help="default: all, one by one")
    options = parser.parse_args()
    num_different = 0
    with tempfile.TemporaryDirectory() as name:
        for setup in [options.setup] if options.setup else sorted(SETUPS):
            num_different += kill_often(
                setup, options.kills, options.steps, options.seed, Path(name)
            )
    print("all bit-identical" if not num_different else f"{num_different} files differ")
    return int(num_different > 0)


if __name__ == "__main__":
    sys.exit(main())
