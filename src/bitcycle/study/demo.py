"""The demo: static 8-bit against cycled precision on real images, in a minute, no download."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

from bitcycle.recipes import recipe
from bitcycle.study.engines import make_engine
from bitcycle.study.headline import headline
from bitcycle.study.progress import Lines, failures_text
from bitcycle.study.results import MethodResult, StudyResult, write_options
from bitcycle.study.runner import run_study
from bitcycle.study.study import Method, Study, StudyOptions
from bitcycle.tables import text_table

METHODS = {
    "float32": "digits-float32",
    "static 8/8": "digits-static-8-8",
    "CPT 3-8/8": "digits-cpt-3-8-8",
    "static 3/8": "digits-static-3-8",
}
BASELINE = "static 8/8"
WIDTH = 90


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
    """The rows of the demo; `str()` is its table. study: what they were made of."""

    rows: tuple[DemoRow, ...]
    study: StudyResult | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        body = [
            (row.method, f"{row.mean:.2f} +- {row.spread:.2f}", f"{row.relative_cost:.3f}",
             f"{row.seconds:.1f} s")
            for row in self.rows
        ]  # fmt: skip
        seeds = _seeds(len(self.rows[0].accuracies))
        header = ("forward/backward bits", "test accuracy %", "training cost", "time per run")
        answer = "" if self.study is None else f"{textwrap.fill(headline(self.study), WIDTH)}\n\n"
        return (
            f"{text_table(header, body, right=(1, 2, 3))}\n\n{answer}"
            "bits      of weights and activations / of errors; CPT (cyclic precision training) "
            "raises\n          the first from 3 to 8, eight times in a run\n"
            f"accuracy  mean +- standard deviation over {seeds} on 360 test images, where "
            "one is 0.28\n          points; evaluated at the most bits of the schedule\n"
            "cost      bit operations (BitOPs) of all training steps, static 8/8 = 1\n"
            "time      low precision is simulated in float32 here, which takes longer, not less"
        )


def _seeds(number: int) -> str:
    return f"{number} seed{'s' if number > 1 else ''}"


def demo_study(num_seeds: int = 3) -> Study:
    """Four methods that differ in nothing but bits."""
    return Study(
        name="demo",
        description="Static 8-bit against cycled precision: a small residual net on 8x8 images of "
        "digits, a minute on two cores",
        methods=tuple(Method(label=label, config=recipe(name)) for label, name in METHODS.items()),
        seeds=tuple(range(num_seeds)),
        baseline=BASELINE,
        scale="small",
    )


def run_demo(
    output: Path, *, num_seeds: int = 3, num_jobs: int = 2, say: Callable[[str], None] = print
) -> DemoResult:
    """Train what is missing below `output`, several runs at a time, and sum up."""
    if num_seeds < 1 or num_jobs < 1:
        raise ValueError(f"seeds ({num_seeds}) and jobs ({num_jobs}) must be at least 1")
    study = demo_study(num_seeds)
    say(
        f"training a small residual net on 8x8 images of digits: {len(METHODS)} methods x "
        f"{_seeds(num_seeds)}"
    )
    write_options(output, study.name, StudyOptions(seeds=study.seeds))
    engine = make_engine("local", num_jobs=num_jobs)
    result = run_study(study, output, engine=engine, retry_failed=True, watcher=Lines(say))
    if result.count("failed"):
        raise ChildProcessError(failures_text(result).replace("--retry-failed", "the same command"))
    return summarize(result)


def summarize(result: StudyResult) -> DemoResult:
    """Rows in the order of the methods, costs relative to the baseline's."""
    [group] = result.study.groups
    baseline = result.baseline(group)
    assert baseline is not None
    assert baseline.bitops is not None
    rows = tuple(_row(row, baseline.bitops) for row in result.methods)
    return DemoResult(rows, result)


def _row(row: MethodResult, baseline_bitops: float) -> DemoRow:
    runs = list(row.results.values())
    assert row.bitops is not None
    return DemoRow(
        method=row.method.label,
        forward=str(row.method.config.precision.forward),
        num_steps=runs[0].steps,
        accuracies=tuple(row.values.values()),
        relative_cost=row.bitops / baseline_bitops,
        seconds=mean(run.seconds for run in runs),
        directories=tuple(run.directory for run in runs),
    )
