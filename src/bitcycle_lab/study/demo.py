"""The demo: accuracy, cost and time of float32, static and cyclic precision on images of digits.

`bitcycle demo` calls `run_demo` and prints the `DemoResult`: its `str()` is the table. Accuracy and
cost are those of a study, whose runs train in parallel. The time of a step is measured afterwards,
by the benchmark: steps of the methods in turn in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from bitcycle.tables import text_table
from bitcycle_lab.recipes.notation import FLOAT32, Notation
from bitcycle_lab.study.engines import make_engine
from bitcycle_lab.study.number_text import cost_decimals, cost_text, summary_text
from bitcycle_lab.study.progress import Lines, failures_text
from bitcycle_lab.study.results import StudyResult, read_study, write_options
from bitcycle_lab.study.runner import run_study
from bitcycle_lab.study.study import Study, StudyOptions
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.study.summary import MethodSummary, column_decimals, summarize
from bitcycle_lab.train.config import PrecisionConfig, RunConfig

if TYPE_CHECKING:  # it imports torch, which a picture of a stored study does not need
    from bitcycle_lab.bench import BenchResult, StepTime
    from bitcycle_lab.bench.workloads import Workload

REPEATS = 10
BUDGET = 5.0  # seconds per method and bits, which only a step slower than half a second uses up
BUSY = 1.3  # lower quartile by fastest, above which other processes disturb
WORKLOAD = "digits"
_WIDTH, _INDENT = 100, 10


@dataclass(frozen=True)
class DemoResult:
    """The finished demo. `str()` is its table."""

    study: StudyResult
    speed: BenchResult

    @property
    def methods(self) -> tuple[MethodSummary, ...]:
        """The methods in the order of the table."""
        [group] = summarize(self.study)
        return group.methods

    def time_of(self, label: str) -> StepTime:
        """The time of a step of the method with that label."""
        kernel, bits = _variant(label)
        return self.speed.find(WORKLOAD, kernel, bits)

    def kernel_of(self, label: str) -> str:
        """What multiplied in its timed steps, such as "native avx512_vnni"."""
        instruction_set = self.speed.processor.instruction_set
        names = {kernel for kernel, _ in self.time_of(label).layers.values()} or {"torch"}
        shown = (f"native {instruction_set}" if name == "native" else name for name in names)
        return " and ".join(sorted(shown))

    def __str__(self) -> str:
        decimals = column_decimals(self.methods).value
        of_costs = cost_decimals(each.relative_cost for each in self.methods)
        rows = []
        for each in self.methods:
            assert each.summary is not None
            time = self.time_of(each.label)
            assert time.timing is not None
            rows.append(
                (
                    each.label,
                    summary_text(each.summary, decimals),
                    str(each.summary.n),
                    cost_text(each.relative_cost, of_costs),
                    f"{time.ratio:.2f}",
                    f"{1e3 * time.timing.fastest:.1f}",
                    self.kernel_of(each.label),
                )
            )
        header = ("method", "test accuracy %", "n", "BitOPs", "time per step", "ms", "kernel")
        return f"{text_table(header, rows, right=(1, 2, 3, 4, 5))}\n\n{self._legend()}"

    @property
    def conditions(self) -> str:
        """How the time of a step was measured."""
        timings = [time for each in self.methods if (time := self.time_of(each.label).timing)]
        threads = self.speed.processor.num_threads
        repeats = min(len(timing.seconds) for timing in timings)
        busy = max(timing.lower_quartile / timing.fastest for timing in timings)
        parts = [
            "forward, backward and SGD, float32 = 1",
            f"{self.speed.sizes[WORKLOAD]}, {threads} thread{'s' * (threads > 1)}",
            f"the fastest of {repeats}, methods in turn in one process" if repeats > 1 else "once",
            "CPT: the mean over the bits of a cycle",
        ]
        if busy > BUSY:
            parts.append(
                f"a busy machine: the lower quartile is up to {busy:.1f} times the fastest"
            )
        return "; ".join(parts)

    def _legend(self) -> str:
        times = [self.time_of(each.label) for each in self.methods]
        simulated = dict.fromkeys(
            why for time in times for kernel, why in time.layers.values() if kernel == "simulate"
        )
        lines = {
            "method": "bits of weights and activations / of errors, the gradients with respect to "
            "outputs; CPT (cyclic precision training) raises the first from 4 to 8, four times",
            "accuracy": "mean ± standard deviation over n seeds on 360 test images, where one is "
            "0.28 points; evaluated at the most bits of the schedule",
            "BitOPs": "bit operations of all training steps, float32 = 1",
            "time": self.conditions,
            "kernel": "; ".join(["chosen by processor, bits and shape", *simulated]),
        }
        texts = [
            line
            for name, text in lines.items()
            for line in wrap(text, _WIDTH, initial_indent=name.ljust(_INDENT),
                             subsequent_indent=" " * _INDENT)
        ]  # fmt: skip
        return "\n".join([*texts, "", str(self.speed.processor)])


def _variant(label: str) -> tuple[str, str]:
    """Kernel and bits of a method in the benchmark.

    >>> [_variant(label) for label in ("float32", "static 8/8", "CPT 4-8/8")]
    [('float32', ''), ('auto', 'w8a8e8'), ('auto', '4-8/8')]
    """
    from bitcycle_lab.bench.steps import AUTO, FLOAT, Variant, parse_bits

    if label == FLOAT32:
        return FLOAT, ""
    return AUTO, Variant(AUTO, parse_bits(_bits(label))).bits_text


def _bits(label: str) -> str:
    """The bits of a method as the benchmark reads them."""
    found = Notation.parse(label)
    if found.is_cycled:
        return f"{found.forward}/{found.backward}"
    return f"FW{found.forward}/BW{found.backward}"


def run_demo(
    output: Path, *, num_seeds: int = 3, num_jobs: int = 2, say: Callable[[str], None] = print
) -> DemoResult:
    """Train the runs that have no result below `output`, time the methods, return all results."""
    if num_seeds < 1 or num_jobs < 1:
        raise ValueError(f"seeds ({num_seeds}) and jobs ({num_jobs}) must be at least 1")
    study = replace(find_study("demo"), seeds=tuple(range(num_seeds)))
    write_options(output, study.name, StudyOptions(seeds=study.seeds))
    result = read_study(study, output)
    if result.count("done") == result.num_runs:
        say(f"nothing to train: {output} has the results of all {result.num_runs} runs")
    else:
        engine = make_engine("local", num_jobs=num_jobs)
        result = run_study(study, output, engine=engine, retry_failed=True, watcher=Lines(say))
    if result.count("failed"):
        raise ChildProcessError(failures_text(result).replace("--retry-failed", "the same command"))
    say("timing the steps of all methods in turn")
    return DemoResult(result, time_methods(study))


def time_methods(study: Study, *, repeats: int = REPEATS) -> BenchResult:
    """The time of a training step of each method, on the threads and in the layout of its runs."""
    from bitcycle.native.allocator import keep_freed_memory
    from bitcycle_lab.bench import BenchConfig, run_bench
    from bitcycle_lab.bench.steps import AUTO
    from bitcycle_lab.train.session import preserve_torch_settings

    bits = tuple(_bits(each.label) for each in study.methods if each.label != FLOAT32)
    config = BenchConfig(kernels=(AUTO,), bits=bits, repeats=repeats, budget=BUDGET)
    is_kept = keep_freed_memory()  # as in the runs
    with preserve_torch_settings():
        load = _workload(study.methods[-1].config)
        result = run_bench(config, workloads={WORKLOAD: lambda is_quick: load})
    return replace(result, keeps_freed_memory=is_kept)


def _workload(config: RunConfig) -> Workload:
    """The network of a run before it is converted, and its first batch. Sets torch's threads."""
    import torch.nn.functional as F

    from bitcycle_lab.bench.workloads import Workload
    from bitcycle_lab.train.session import build_session

    session = build_session(replace(config, precision=PrecisionConfig()))
    batch = session.batches.batch_at(0)
    return Workload(
        model=session.model,
        inputs=(batch.inputs,),
        loss=lambda logits: F.cross_entropy(logits, batch.targets),
        size=f"batch of {len(batch.targets)}",
        skip=config.precision.skip,
    )
