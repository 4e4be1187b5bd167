"""Why cyclic precision ends better or worse than static bits: the ends of finished runs.

    python benchmarks/end_of_run.py RUNS --data.root DATA --json end-of-run.json
                                    [--seeds 0 1] [--steps 8000]

RUNS holds the runs of `bitcycle study run lengths`. The last weights of each run are evaluated at
its highest bits on test images, on training images and on augmented training images; again with new
batch-norm statistics, and with new activation ranges too. The last 1, 4 and 8 cycles of CPT 3-8/8
are also trained with all bits instead of a cycle, from the run's own checkpoint. As a control, the
last cycle of the first such run is trained as it was, and must end with the same weights.
Every value is written when it is there, and a second call measures what is missing. A quarter
of an hour a seed on one core.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bitcycle as bc
from bitcycle.files import write_json
from bitcycle.model_precision import at_precision
from bitcycle.native.allocator import keep_freed_memory
from bitcycle.schedules import parse_schedule
from bitcycle.schedules.cycle import Cyclic
from bitcycle.tables import text_table
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.data import Batch
from bitcycle_lab.study.number_text import difference_text, fixed, interval_text
from bitcycle_lab.study.results import RunStatus, open_study, read_study
from bitcycle_lab.study.statistics import paired_difference, summarize_values
from bitcycle_lab.train.checkpoint import Checkpoints
from bitcycle_lab.train.config import RunConfig
from bitcycle_lab.train.config_file import override
from bitcycle_lab.train.evaluate import eval_precision, evaluate, evaluation_mode, is_converted
from bitcycle_lab.train.final_evaluation import weights_digest
from bitcycle_lab.train.loop import remaining_steps, train_step
from bitcycle_lab.train.result import RunResult
from bitcycle_lab.train.run_directory import RunDirectory, measurement_info
from bitcycle_lab.train.session import Session, build_session, preserve_torch_settings

STUDY, STEPS = "lengths", 8_000
CYCLIC = "CPT 3-8/8, N = 32"  # whose last cycles are trained at the highest bits instead
METHODS = ("float32", "static 8/8", CYCLIC, "CPT 4-8/8, N = 32", "static 6/6")
BASELINE = "static 8/8"
NUM_FINAL_CYCLES = (1, 4, 8)
NUM_BATCHES = 100  # of augmented training images
AS_TRAINED, NORMS, RANGES = "as trained", "new batch norm", "new batch norm and ranges"

Metrics = dict[str, dict[str, float]]  # test, train or augmented -> metric -> value


# -- a run's last weights -----------------------------------------------------------------------


def load_session(config: RunConfig, run: RunDirectory, step: int) -> Session:
    """The objects of a configuration with the whole state of a run's checkpoint.

    The configuration may have another forward schedule than the run.
    """
    state = Checkpoints(run.checkpoints).load(step)
    session = build_session(config, run.path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the saved scheduler had schedules", BitcycleWarning)
        session.load_state_dict(state)
    return session


def highest_bits(session: Session) -> Any:
    """The bits of every evaluation here."""
    return eval_precision("high", session.scheduler)


def augmented_batches(session: Session, num_batches: int) -> Iterator[Batch]:
    """Training batches as the steps after the run would see them."""
    last = session.total_steps
    for batch in session.batches.from_step(last, last + num_batches):
        yield batch.to(session.device)


def measure(session: Session, num_batches: int = NUM_BATCHES) -> Metrics:
    """Metric and loss on test, training and augmented training images, in evaluation mode."""
    task, model, bits = session.task, session.model, highest_bits(session)
    found = {
        "test": evaluate(task, model, "test", bits, device=session.device),
        "train": evaluate(task, model, "train", bits, device=session.device),
    }
    sums: dict[str, float] = {}
    with evaluation_mode(model, bits):
        for batch in augmented_batches(session, num_batches):
            for name, value in task.loss(model, batch)[1].items():
                sums[name] = sums.get(name, 0.0) + float(value)
    found["augmented"] = task.metrics(sums)
    names = (task.metric, "loss")
    return {split: {name: values[name] for name in names} for split, values in found.items()}


def renew_norms(session: Session, num_batches: int = NUM_BATCHES) -> None:
    """Replace the statistics of every BatchNorm by their mean over augmented training batches.

    Only the BatchNorms are in training mode: the activation ranges stay as they are.
    """
    model = session.model
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    with evaluation_mode(model, highest_bits(session)):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # all batches weigh the same
            norm.train()
        for batch in augmented_batches(session, num_batches):
            model(*session.task.inputs(batch))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def renew_ranges(session: Session, num_batches: int = NUM_BATCHES) -> None:
    """Replace the activation ranges by their mean over augmented training batches."""
    batches = augmented_batches(session, num_batches)
    with at_precision(session.model, highest_bits(session)):
        bc.calibrate(session.model, ([session.task.inputs(batch)] for batch in batches))


def measure_end(
    config: RunConfig, run: RunDirectory, num_batches: int = NUM_BATCHES
) -> dict[str, Metrics]:
    """The last weights as trained, with new batch-norm statistics, and with new ranges too."""
    with preserve_torch_settings():
        session = load_session(config, run, RunResult.read(run.path).steps)
        found = {AS_TRAINED: measure(session, num_batches)}
        renew_norms(session, num_batches)
        found[NORMS] = measure(session, num_batches)
        if is_converted(session.model):
            renew_ranges(session, num_batches)
            found[RANGES] = measure(session, num_batches)
    return found


# -- another end of a run -----------------------------------------------------------------------


def hold_last_cycles(forward: str, num_final: int, total_steps: int) -> tuple[int, str]:
    """The step where the last cycles begin, and the schedule that holds them at the highest bits.

    CR:3-8:32, one cycle and 8,000 steps give 7,750 and seq(CR:3-8:31@0.96875, 8).
    """
    schedule = parse_schedule(forward)
    if not isinstance(schedule, Cyclic) or not 0 < num_final < schedule.cycles:
        raise ValueError(f"{forward} has no {num_final} last cycles to replace")
    num_kept = schedule.cycles - num_final
    start = total_steps * num_kept // schedule.cycles
    kept = replace(schedule, cycles=num_kept)  # type: ignore[type-var]
    text = f"seq({kept}@{num_kept / schedule.cycles!r}, {schedule.high})"
    bits, held = schedule.values(total_steps), parse_schedule(text).values(total_steps)
    if held != bits[:start] + [schedule.high] * (total_steps - start):
        raise ValueError(
            f"{text} is not {forward} up to step {start}: {schedule.cycles} cycles must divide "
            f"{total_steps} steps"
        )
    return start, text


def train_to_end(config: RunConfig, run: RunDirectory, step: int) -> Session:
    """Train from a run's checkpoint to the end of the run. Writes nothing."""
    session = load_session(config, run, step)
    session.wrapped.train()
    with closing(remaining_steps(session)) as steps:
        for micro_batches in steps:
            train_step(session, micro_batches)
            session.step += 1
    return session


def measure_static_end(
    config: RunConfig, run: RunDirectory, num_final: int, num_batches: int = NUM_BATCHES
) -> Metrics:
    """The run with its last cycles held at the highest bits."""
    with preserve_torch_settings():
        total = RunResult.read(run.path).steps
        start, forward = hold_last_cycles(str(config.precision.forward), num_final, total)
        held = replace(config, precision=replace(config.precision, forward=forward))
        return measure(train_to_end(held, run, start), num_batches)


def repeat_end(config: RunConfig, run: RunDirectory, num_cycles: int = 1) -> dict[str, float]:
    """Train the last cycles as the run did. Raises ValueError unless the weights are the run's."""
    result = RunResult.read(run.path)
    start, _ = hold_last_cycles(str(config.precision.forward), num_cycles, result.steps)
    with preserve_torch_settings():
        session = train_to_end(config, run, start)
        bits = highest_bits(session)
        again = evaluate(session.task, session.model, "test", bits, device=session.device)
    if weights_digest(session.model) != result.weights_sha256:
        raise ValueError(
            f"{run.path} trained again from step {start} ends with {again[result.metric]}, not "
            f"{result.value}: use the processor, the versions and the kernels of the run"
        )
    return {"run": result.value, "again": again[result.metric]}


# -- all runs -----------------------------------------------------------------------------------


def cyclic_schedule(config: RunConfig) -> Cyclic | None:
    """The forward schedule of a cyclic run; None for float32 and static bits."""
    text = config.precision.forward
    schedule = parse_schedule(text) if isinstance(text, str) else None
    return schedule if isinstance(schedule, Cyclic) else None


def static_end_name(num_final: int, high: object) -> str:
    """The name of a run with other last cycles."""
    return f"{high} bits in the last {'cycle' if num_final == 1 else f'{num_final} cycles'}"


def curve_of(run: RunDirectory, metric: str) -> list[list[float]]:
    """[step, metric] of every evaluation on the test split during the run."""
    lines = [line for line in run.read_metrics() if line.get("kind") == "eval"]
    return [[line["step"], line[metric]] for line in lines if line["split"] == "test"]


def measure_run(
    status: RunStatus, found: dict[str, Any], overrides: Sequence[str], save: Callable[[], None]
) -> None:
    """Add what `found` does not have of a finished run; calls `save` after every measurement."""
    run, result, seed = RunDirectory(status.directory), status.result, status.seed
    assert result is not None
    config = override(run.read_config(), overrides)
    entry = entry_of(found, status.method.label, seed, result)
    entry["curve"] = curve_of(run, result.metric)
    variants, num_batches = entry["variants"], found["num_batches"]

    def add(new: dict[str, Metrics]) -> None:
        variants.update(new)
        save()
        for variant, metrics in new.items():
            test, train = (metrics[split][result.metric] for split in ("test", "train"))
            name = f"{status.method.label}, seed {seed}, {variant}"
            print(f"{name}: test {test:.2f}, training {train:.2f}", flush=True)

    if AS_TRAINED not in variants:
        add(measure_end(config, run, num_batches))
    schedule = cyclic_schedule(config)
    if schedule is None or status.method.label != CYCLIC:
        return
    if found["control"] is None:
        ends = repeat_end(config, run)
        found["control"] = {"method": status.method.label, "seed": seed, **ends}
        save()
        print(
            f"control, seed {seed}: the last cycle trained again ends with test "
            f"{ends['again']:.2f}, the run with {ends['run']:.2f}, and the weights are equal",
            flush=True,
        )
    for num_final in NUM_FINAL_CYCLES:
        variant = static_end_name(num_final, schedule.high)
        if variant not in variants:
            add({variant: measure_static_end(config, run, num_final, num_batches)})


def entry_of(found: dict[str, Any], method: str, seed: int, result: RunResult) -> dict[str, Any]:
    """The measurements of a run; new ones if it was trained again since."""
    own = {"method": method, "seed": seed, "weights_sha256": result.weights_sha256}
    for entry in found["runs"]:
        if entry["method"] == method and entry["seed"] == seed:
            if entry["weights_sha256"] != result.weights_sha256:
                entry.update(own, variants={})
                found["control"] = None
            return entry  # type: ignore[no-any-return]
    found["runs"].append({**own, "curve": [], "variants": {}})
    return found["runs"][-1]  # type: ignore[no-any-return]


def values_by_variant(found: dict[str, Any]) -> dict[str, dict[int, Metrics]]:
    """The metrics by name of the variant, then by seed; the methods in their order."""
    values: dict[str, dict[int, Metrics]] = {}
    for entry in sorted(found["runs"], key=lambda own: METHODS.index(own["method"])):
        for variant, metrics in entry["variants"].items():
            name = entry["method"] + ("" if variant == AS_TRAINED else f": {variant}")
            values.setdefault(name, {})[entry["seed"]] = metrics
    return values


def table(found: dict[str, Any], metric: str = "accuracy") -> str:
    """A row per method and variant, with its difference to the baseline as trained."""
    values, rows = values_by_variant(found), []

    def by_seed(name: str, split: str) -> dict[int, float]:
        return {seed: own[split][metric] for seed, own in values.get(name, {}).items()}

    for name in values:
        test, train, augmented = (by_seed(name, s) for s in ("test", "train", "augmented"))
        tested = summarize_values(test.values())
        means = [summarize_values(own.values()).mean for own in (train, augmented)]
        difference = paired_difference(test, by_seed(BASELINE, "test"))
        rows.append(
            (
                name,
                f"{tested.mean:.2f} ({interval_text(tested.low, tested.high)})",
                *(fixed(mean, 2) for mean in means),
                fixed(means[0] - tested.mean, 2),
                "" if name == BASELINE else difference_text(difference),
                str(0 if difference is None else difference.n),
            )
        )
    header = ("variant", f"test {metric} (95 %)", "training", "augmented", "gap",
              f"to {BASELINE} (95 %)", "n")  # fmt: skip
    return text_table(header, rows, right=range(1, len(header)))


def read_found(path: Path, steps: int) -> dict[str, Any]:
    """What an earlier call wrote, or nothing yet."""
    if not path.exists():
        return {"kind": "end-of-run", "study": STUDY, "steps": steps, "baseline": BASELINE,
                "num_batches": NUM_BATCHES, "seconds": 0.0, "control": None,
                "runs": []}  # fmt: skip
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if found.get("kind") != "end-of-run" or found["steps"] != steps:
        raise ValueError(f"{path} does not hold the ends of runs of {steps} steps; give another")
    return found


def find_runs(output: Path, steps: int, seeds: Sequence[int] | None) -> list[RunStatus]:
    """The runs of the study's methods of this length, done or not; by seed."""
    study = open_study(STUDY, output)
    study = replace(
        study,
        seeds=tuple(dict.fromkeys((*study.seeds, *(seeds or ())))),
        methods=tuple(replace(method, num_seeds=None) for method in study.methods),
    )
    runs = [run for method in read_study(study, output).methods for run in method.runs]
    return sorted(
        (
            run
            for run in runs
            if run.method.label in METHODS
            and run.config.steps == steps
            and (seeds is None or run.seed in seeds)
        ),
        key=lambda run: (run.seed, METHODS.index(run.method.label)),
    )


def main() -> None:
    """Measure the finished runs and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, metavar="RUNS", help="the output folder of the study")
    parser.add_argument("--data.root", dest="data_root", required=True)
    parser.add_argument("--json", type=Path, metavar="FILE", required=True, help="the numbers")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: those of the study")
    parser.add_argument("--steps", type=int, default=STEPS, help="the length of the runs")
    options = parser.parse_args()
    keep_freed_memory()
    runs = find_runs(options.runs, options.steps, options.seeds)
    if not any(run.state == "done" for run in runs):
        parser.error(f"no run of {STUDY} with {options.steps} steps is done below {options.runs}")
    found = read_found(options.json, options.steps)
    began, before = time.monotonic(), found["seconds"]

    def save() -> None:
        threads = runs[0].config.threads or torch.get_num_threads()
        found.update(measurement_info(before + time.monotonic() - began, threads=threads))
        found.update(group=runs[0].method.group)
        write_json(options.json, found)

    for run in runs:
        if run.state == "done":
            measure_run(run, found, ("--data.root", options.data_root), save)
    for run in runs:
        if run.state != "done" and (options.seeds or run.state == "started"):
            print(f"not measured: {run.method.label}, seed {run.seed} ({run.state})")
    save()
    print(f"\n{table(found)}")


if __name__ == "__main__":
    main()
