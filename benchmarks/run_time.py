"""The wall-clock time of training runs next to their BitOPs: CPT, static bits and float32.

    python benchmarks/run_time.py lengths --steps 200 --repeats 5 --data.root DATA \
        --json results/data/run-times.json
    python benchmarks/run_time.py table5-small --avx2 --data.root DATA \
        --json results/data/run-times.json

Takes the networks and methods of a study, each method once, and trains each of them for `--steps`
steps: the whole schedule, with fewer cycles, so that each has enough steps to reach its top. The
time is that of the training loop, with the data and without evaluation, logging and checkpoints.
Every round trains all methods side by side, one step of each in turn, in random order. A busy
machine slows all of them alike: only the ratios, taken within a round, are meant to be compared.
All runs of a round are in memory. `--avx2` limits every library to AVX2 instructions, on a
processor that has more. `--json` adds the numbers to a file; those of the same network, processor
and threads are replaced. Other options override the settings of the study.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bitcycle.files import write_json
from bitcycle.native.allocator import keep_freed_memory
from bitcycle.native.library import SWITCH, describe, instruction_set
from bitcycle.schedules import parse_schedule
from bitcycle.schedules.base import pluralize
from bitcycle.schedules.cycle import Cycle, Cyclic
from bitcycle.tables import text_table
from bitcycle_lab.bench.result import Timing
from bitcycle_lab.published import display_name
from bitcycle_lab.recipes.recipe import bits_of
from bitcycle_lab.study.number_text import duration_text, fixed
from bitcycle_lab.study.statistics import Summary, summarize_values
from bitcycle_lab.study.study import Study, StudyOptions, adjust
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.train.config import PrecisionConfig, RunConfig, ScheduleText
from bitcycle_lab.train.final_evaluation import weights_digest
from bitcycle_lab.train.loop import remaining_steps, train_step
from bitcycle_lab.train.run_directory import measurement_info
from bitcycle_lab.train.session import Session, build_session

BASE, FLOAT = "static 8/8", "float32"
STEPS_PER_CYCLE = 25  # at least: fewer steps would change the shares of the bits
AVX2 = {
    SWITCH: "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


@dataclass
class TimedMethod:
    """A method of a network, and the seconds of its steps in every round.

    bitops, weights: of the last round; the digest of the weights tells runs apart.
    """

    label: str
    config: RunConfig
    bitops: int = 0
    weights: str = ""
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)  # less: others used the processor

    @property
    def milliseconds(self) -> list[float]:
        """Of a step, by round."""
        assert self.config.steps is not None
        return [1e3 * seconds / self.config.steps for seconds in self.seconds]

    @property
    def lower_quartile(self) -> float:
        """Milliseconds of a step in the lower quartile of the rounds."""
        return Timing(tuple(self.milliseconds)).lower_quartile

    def ratio(self, base: TimedMethod) -> Summary:
        """The time over that of another method, within each round."""
        pairs = zip(self.seconds, base.seconds, strict=True)
        return summarize_values(own / other for own, other in pairs)


# -- which runs -----------------------------------------------------------------------------------


def choose_methods(study: Study, steps: int) -> dict[str, list[TimedMethod]]:
    """The methods of each network, float32 first; of several lengths or cycles the first.

    >>> for name, methods in choose_methods(find_study("lengths"), 200).items():
    ...     print(name, [f"{each.label}: {bits_of(each.config)}" for each in methods][:3])
    ResNet-8 on CIFAR-10 ['float32: float32', 'static 8/8: 8 / 8', 'CPT 3-8/8: CR:3-8:8 / 8']
    """
    networks: dict[str, dict[str, RunConfig]] = {}
    for method in study.methods:
        config = method.config
        network = f"{display_name(config.model.name)} on {display_name(config.data.name)}"
        label = method.label.partition(", ")[0]  # without the number of cycles
        networks.setdefault(network, {}).setdefault(label, config)
    for network, found in networks.items():
        if BASE not in found:
            raise ValueError(f"study {study.name!r} has no {BASE} of {network} to compare with")
        others = {name: config for name, config in found.items() if name != FLOAT}
        float32 = replace(found[BASE], precision=PrecisionConfig())
        networks[network] = {FLOAT: found.get(FLOAT, float32), **others}
    return {
        network: [TimedMethod(name, shorten(config, steps)) for name, config in found.items()]
        for network, found in networks.items()
    }


def shorten(config: RunConfig, steps: int) -> RunConfig:
    """The run at this length, with as many cycles as have enough steps."""
    precision = config.precision.with_backward()
    forward, backward = (fit_cycles(t, steps) for t in (precision.forward, precision.backward))
    precision = replace(precision, forward=forward, backward=backward)
    return replace(config, steps=steps, epochs=None, precision=precision)


def fit_cycles(text: ScheduleText, steps: int) -> ScheduleText:
    """A schedule with at most as many cycles as have enough steps; others as they are.

    >>> fit_cycles("CR:3-8:32", 200), fit_cycles("CR:3-8:4", 200), fit_cycles("RR:3-8:8", 200)
    ('CR:3-8:8', 'CR:3-8:4', 'RR:3-8:2')
    >>> fit_cycles(8, 200)
    8
    """
    schedule = parse_schedule(text) if isinstance(text, str) else None
    if not isinstance(schedule, Cyclic):
        return text
    shortest = schedule.shortest_cycle() if isinstance(schedule, Cycle) else None
    most = max(1, steps // max(STEPS_PER_CYCLE, shortest or 0))
    return str(replace(schedule, cycles=min(schedule.cycles, most)))  # type: ignore[type-var]


# -- timing ---------------------------------------------------------------------------------------


def time_network(
    methods: Sequence[TimedMethod], *, repeats: int, warmup: int, say: Any = print
) -> None:
    """Train every method once per round."""
    for repeat in range(repeats):
        time_round(methods, warmup, seed=repeat)
        for method in methods:
            share = method.cpu_seconds[-1] / method.seconds[-1]
            took = f"{method.milliseconds[-1]:8.2f} ms a step, CPU {100 * share:.0f} %"
            say(f"  round {repeat + 1}/{repeats}  {method.label:12}  {took}")


def time_round(methods: Sequence[TimedMethod], warmup: int, seed: int = 0) -> None:
    """Train every method once, one step of each in turn, and add the seconds of its steps.

    Neighbouring steps see the same machine, however its speed changes over a round. The order of
    each turn is random: what a step leaves behind, in caches or for the garbage collector, slows
    all methods alike.
    """
    gc.collect()  # the last round's data
    with ExitStack() as stack:
        sessions = [warmed_up(method.config, warmup) for method in methods]
        loops = [stack.enter_context(closing(remaining_steps(session))) for session in sessions]
        runs = list(zip(methods, sessions, loops, strict=True))
        for method in methods:
            method.seconds.append(0.0)
            method.cpu_seconds.append(0.0)
        generator = random.Random(seed)
        for _ in range(sessions[0].total_steps):
            for method, session, loop in generator.sample(runs, len(runs)):
                began, cpu_began = time.perf_counter(), time.thread_time()
                train_step(session, next(loop))
                session.step += 1
                method.seconds[-1] += time.perf_counter() - began
                method.cpu_seconds[-1] += time.thread_time() - cpu_began
    for method, session in zip(methods, sessions, strict=True):
        method.bitops = session.bitops
        method.weights = weights_digest(session.model)


def warmed_up(config: RunConfig, num_steps: int) -> Session:
    """The objects of a run before its first step, after steps that are undone."""
    session = build_session(config)
    session.wrapped.train()
    start = copy.deepcopy(session.state_dict())
    with closing(remaining_steps(session)) as steps:
        for micro_batches in islice(steps, num_steps):
            train_step(session, micro_batches)
            session.step += 1
    session.load_state_dict(start)
    return session


# -- output ---------------------------------------------------------------------------------------


def network_table(methods: Sequence[TimedMethod]) -> str:
    """A row per method."""
    by_label = {method.label: method for method in methods}
    base = by_label[BASE]
    rows = [
        (
            method.label,
            bits_of(method.config),
            method.config.precision.kernel if method.label != FLOAT else "-",
            fixed(method.lower_quartile, 2),
            fixed(method.bitops / base.bitops, 3),
            ratio_text(method.ratio(base)),
            ratio_text(method.ratio(by_label[FLOAT])),
            str(len(method.seconds)),
        )
        for method in methods
    ]
    header = ("method", "schedule", "kernel", "ms", f"BitOPs / {BASE}", f"time / {BASE}",
              f"time / {FLOAT}", "n")  # fmt: skip
    return text_table(header, rows, right=(3, 4, 5, 6, 7))


def ratio_text(ratio: Summary) -> str:
    """A ratio with its interval, if it has one."""
    if ratio.low is None or ratio.high is None:
        return fixed(ratio.mean, 3)
    return f"{fixed(ratio.mean, 3)} ({fixed(ratio.low, 3)} to {fixed(ratio.high, 3)})"


def method_entry(method: TimedMethod) -> dict[str, Any]:
    """What was measured, in JSON types."""
    return {
        "method": method.label,
        "schedule": bits_of(method.config),
        "kernel": method.config.precision.kernel,
        "bitops": method.bitops,
        "cpu_share": round(sum(method.cpu_seconds) / sum(method.seconds), 3),
        "milliseconds": [float(f"{each:.5g}") for each in method.milliseconds],
    }


def add_items(path: Path, items: Sequence[Mapping[str, Any]]) -> None:
    """Add what was measured to the file; the same network, processor and threads is replaced."""
    keys = ("network", "instruction_set", "is_limited_to_avx2", "threads")
    known = json.loads(path.read_text(encoding="utf-8"))["items"] if path.exists() else []
    merged = {tuple(item[key] for key in keys): item for item in (*known, *items)}
    write_json(
        path, {"kind": "run-times", "items": [merged[key] for key in sorted(merged, key=str)]}
    )


def legend(steps: int, warmup: int) -> str:
    """The meaning of the columns."""
    most = max(1, steps // STEPS_PER_CYCLE)
    return "\n".join(
        [
            f"schedule  forward / backward, with at most {pluralize(most, 'cycle')}: fewer than "
            f"{STEPS_PER_CYCLE} steps a cycle would change the shares of the bits",
            f"ms        a training step with its data, the lower quartile of n runs of {steps} "
            f"steps, after {warmup} steps that are not timed",
            "BitOPs    of a run, counted",
            "time      of a run: the mean of the ratios within n rounds of alternating steps, with "
            "its 95 % t interval",
        ]
    )


# -- command --------------------------------------------------------------------------------------


def read_options() -> tuple[argparse.Namespace, list[str]]:
    """The options of this command, and the overrides of the study."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("study", help="a study's name or YAML file")
    parser.add_argument("--steps", type=int, default=200, help="of every run")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--warmup", type=int, default=5, help="steps before, not timed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--avx2", action="store_true", help="use no more than AVX2")
    parser.add_argument("--data.root", dest="data_root", metavar="DATA", help="folder of the data")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the numbers to this file")
    options, overrides = parser.parse_known_args()
    for name in ("steps", "repeats", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} ({getattr(options, name)}) must be at least 1")
    if options.warmup < 0:
        parser.error(f"--warmup ({options.warmup}) must not be negative")
    return options, overrides


def main() -> None:
    """Measure, print a table per network, and write the JSON."""
    options, overrides = read_options()
    if options.avx2 and any(os.environ.get(name) != value for name, value in AVX2.items()):
        # the libraries read these when they are loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **AVX2})
    keep_freed_memory()
    place = () if options.data_root is None else ("--data.root", options.data_root)
    study = adjust(
        find_study(options.study),
        StudyOptions(overrides=(*place, *overrides), threads=options.threads),
    )

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    items = []
    for network, methods in choose_methods(study, options.steps).items():
        began = time.monotonic()
        say(f"{network}: {len(methods)} methods, {options.repeats} rounds of {options.steps} steps")
        time_network(methods, repeats=options.repeats, warmup=options.warmup, say=say)
        seconds = time.monotonic() - began
        print(f"{network} ({describe()}; {duration_text(seconds)})\n\n{network_table(methods)}\n")
        items.append(
            {
                "network": network,
                "study": study.name,
                "overrides": [*(("--data.root", "DATA") if place else ()), *overrides],
                "steps": options.steps,
                "repeats": options.repeats,
                "warmup": options.warmup,
                "instruction_set": instruction_set(),
                "is_limited_to_avx2": options.avx2,
                **measurement_info(seconds, threads=options.threads),
                "methods": [method_entry(method) for method in methods],
            }
        )
    print(legend(options.steps, options.warmup))
    if options.json is not None:
        add_items(options.json, items)


if __name__ == "__main__":
    main()
