"""The demo: static 8-bit against cycled precision on real images, in two minutes, no download."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from statistics import mean, stdev

from bitcycle.recipes import recipe
from bitcycle.tables import text_table
from bitcycle.train.config import RunConfig
from bitcycle.train.directory import RunDirectory
from bitcycle.train.result import RunResult
from bitcycle.train.run import resume_or_run

METHODS = {
    "float32": "digits-float32",
    "static 8/8": "digits-static-8-8",
    "CPT 3-8/8": "digits-cpt-3-8-8",
    "static 3/8": "digits-static-3-8",
}
BASELINE, CYCLED = "static 8/8", "CPT 3-8/8"


@dataclass(frozen=True)
class DemoRow:
    """One method over its seeds."""

    method: str
    forward: str  # the schedule of weights and activations, as text
    num_steps: int
    accuracies: tuple[float, ...]
    relative_cost: float  # BitOPs, static 8/8 = 1
    seconds: float  # mean wall-clock of a run
    directories: tuple[str, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return mean(self.accuracies)

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; 0 for a single one."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


@dataclass(frozen=True)
class DemoResult:
    """The rows of the demo; `str()` is its table."""

    rows: tuple[DemoRow, ...]

    def __str__(self) -> str:
        body = [
            (row.method, f"{row.mean:.2f} +- {row.spread:.2f}", f"{row.relative_cost:.3f}",
             f"{row.seconds:.1f} s")
            for row in self.rows
        ]  # fmt: skip
        seeds = _seeds(len(self.rows[0].accuracies))
        header = ("forward/backward bits", "test accuracy %", "training cost", "time per run")
        return (
            f"{text_table(header, body, right=(1, 2, 3))}\n\n{self.comparison()}\n\n"
            "bits      of weights and activations / of errors; CPT (cyclic precision training) "
            "raises\n          the first from 3 to 8, eight times in a run\n"
            f"accuracy  mean +- standard deviation over {seeds} on 360 test images, where "
            "one is 0.28\n          points; evaluated at the most bits of the schedule\n"
            "cost      bit operations (BitOPs) of all training steps, static 8/8 = 1\n"
            "time      low precision is simulated in float32 here, which takes longer, not less"
        )

    def comparison(self) -> str:
        """What cycling changes, in one sentence."""
        by_method = {row.method: row for row in self.rows}
        cycled, base = by_method[CYCLED], by_method[BASELINE]
        share, gain = 100 * cycled.relative_cost, cycled.mean - base.mean
        return (
            f"{CYCLED} against {BASELINE}: {share:.0f} % of the training cost, "
            f"accuracy {gain:+.2f} points"
        )


def _seeds(number: int) -> str:
    return f"{number} seed{'s' if number > 1 else ''}"


def demo_configs(output: Path, seeds: Iterable[int]) -> list[tuple[str, RunConfig]]:
    """Every run of the demo."""
    return [
        (method, replace(recipe(name), seed=seed, output=str(output), threads=1))
        for method, name in METHODS.items()
        for seed in seeds
    ]


def run_demo(
    output: Path, *, num_seeds: int = 3, num_jobs: int = 2, say: Callable[[str], None] = print
) -> DemoResult:
    """Train what is missing below `output`, several runs at a time, and sum up."""
    if num_seeds < 1 or num_jobs < 1:
        raise ValueError(f"seeds ({num_seeds}) and jobs ({num_jobs}) must be at least 1")
    configs = demo_configs(output, range(num_seeds))
    say(
        f"training a small residual net on 8x8 images of digits: {len(METHODS)} methods x "
        f"{_seeds(num_seeds)} = {len(configs)} runs, {num_jobs} at a time"
    )
    results: dict[str, list[RunResult]] = {method: [] for method in METHODS}
    for done, (method, result) in enumerate(_run_all(configs, num_jobs), start=1):
        results[method].append(result)
        count = f"[{done:>{len(str(len(configs)))}}/{len(configs)}]"
        say(f"{count} {method:<12}seed {result.seed}  accuracy {result.value:.2f} %")
    return summarize(results)


def _run_all(
    configs: Iterable[tuple[str, RunConfig]], num_jobs: int
) -> Iterator[tuple[str, RunResult]]:
    """(method, result) as they come: finished runs at once, the others from processes."""
    missing = []
    for method, config in configs:
        if RunDirectory(Path(config.output) / config.run_name).is_finished:
            yield method, resume_or_run(config)
        else:
            missing.append((method, config))
    others = active_children()
    running: dict[Future[RunResult], str] = {}
    if not missing:
        return
    # spawn: threads of torch do not survive a fork
    with ProcessPoolExecutor(num_jobs, mp_context=get_context("spawn")) as pool:
        try:
            while missing or running:
                while missing and len(running) < num_jobs:
                    method, config = missing.pop(0)
                    with _deaf_to_interrupts():
                        running[pool.submit(resume_or_run, config)] = method
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        except BaseException:
            for child in set(active_children()).difference(others):
                child.terminate()  # one that trains writes a checkpoint first
            raise


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started inside do not hear Ctrl-C, which would end them with a traceback each."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say so
        return
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def summarize(results: dict[str, list[RunResult]]) -> DemoResult:
    """Rows in the order of the methods, costs relative to the baseline's."""
    ordered = {m: sorted(runs, key=lambda run: run.seed) for m, runs in results.items()}
    base = mean(run.cost["bitops"] for run in ordered[BASELINE])
    return DemoResult(
        tuple(
            DemoRow(
                method=method,
                forward=str(RunDirectory(runs[0].directory).read_config().precision.forward),
                num_steps=runs[0].steps,
                accuracies=tuple(run.value for run in runs),
                relative_cost=mean(run.cost["bitops"] for run in runs) / base,
                seconds=mean(run.seconds for run in runs),
                directories=tuple(run.directory for run in runs),
            )
            for method, runs in ordered.items()
        )
    )
