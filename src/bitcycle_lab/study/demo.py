"""The demo: static 8-bit against cyclic precision on images of digits, in a minute, no download.

`bitcycle demo` calls `run_demo` and prints the `DemoResult`: its `str()` is the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from bitcycle.tables import text_table
from bitcycle_lab.study.engines import make_engine
from bitcycle_lab.study.kernels import kernels_text
from bitcycle_lab.study.number_text import difference_text, summary_text
from bitcycle_lab.study.progress import Lines, failures_text
from bitcycle_lab.study.results import StudyResult, write_options
from bitcycle_lab.study.runner import run_study
from bitcycle_lab.study.study import StudyOptions
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.study.summary import MethodSummary, column_decimals, summarize


@dataclass(frozen=True)
class DemoResult:
    """The finished demo. `str()` is its table."""

    study: StudyResult

    @property
    def methods(self) -> tuple[MethodSummary, ...]:
        """The methods in the order of the table."""
        [group] = summarize(self.study)
        return group.methods

    def __str__(self) -> str:
        rows, decimals = [], column_decimals(self.methods)
        for each in self.methods:
            seconds = fmean(run.seconds for run in each.result.results.values())
            rows.append((each.label, summary_text(each.summary, decimals.value),
                         difference_text(each.difference, decimals.difference),
                         f"{each.relative_cost:.3f}", f"{seconds:.1f} s"))  # fmt: skip
        against = f"against {self.study.study.baseline}"
        header = ("bits", "test accuracy %", against, "training cost", "time per run")
        num_seeds = len(self.study.study.seeds)
        seeds = _seeds(num_seeds)
        what = "mean ± standard deviation over" if num_seeds > 1 else "of"
        return (
            f"{text_table(header, rows, right=(1, 2, 3, 4))}\n\n"
            "bits      of weights and activations / of errors, the gradients with respect to "
            "outputs;\n          CPT (cyclic precision training) raises the first from 3 to 8, "
            "eight times in a run\n"
            f"accuracy  {what} {seeds} on 360 test images, where "
            "one is 0.28\n          points; evaluated at the most bits of the schedule\n"
            "against   difference of the means with its 95 % interval, paired by seed\n"
            "cost      bit operations (BitOPs) of all training steps, static 8/8 = 1\n"
            f"time      {self._kernels()}"
        )

    def _kernels(self) -> str:
        runs = [run for each in self.methods for run in each.result.results.values()]
        kernels = kernels_text(*runs)
        if kernels == "simulate":
            return "with the kernel simulate: low precision in float32 takes longer, not less"
        plural = "s" if " and " in kernels else ""
        return f"with the kernel{plural} {kernels}, chosen by processor, bits and shape"


def _seeds(number: int) -> str:
    return f"{number} seed{'s' if number > 1 else ''}"


def run_demo(
    output: Path, *, num_seeds: int = 3, num_jobs: int = 2, say: Callable[[str], None] = print
) -> DemoResult:
    """Train the runs that have no result below `output`, and return all results."""
    if num_seeds < 1 or num_jobs < 1:
        raise ValueError(f"seeds ({num_seeds}) and jobs ({num_jobs}) must be at least 1")
    study = replace(find_study("demo"), seeds=tuple(range(num_seeds)))
    say(
        f"training a small residual net on 8x8 images of digits: {len(study.methods)} methods x "
        f"{_seeds(num_seeds)}"
    )
    write_options(output, study.name, StudyOptions(seeds=study.seeds))
    engine = make_engine("local", num_jobs=num_jobs)
    result = run_study(study, output, engine=engine, retry_failed=True, watcher=Lines(say))
    if result.count("failed"):
        raise ChildProcessError(failures_text(result).replace("--retry-failed", "the same command"))
    return DemoResult(result)
