"""Find the model, the bounds and own runs of `bitcycle plan`; `cost/planner.py` makes the list."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bitcycle.analysis.config_id import config_id
from bitcycle.analysis.numbers import interval_text
from bitcycle.analysis.statistics import Difference, paired_difference
from bitcycle.analysis.training_spec import (
    TrainingSpec,
    find_run_config,
    find_spec,
    spec_from_config,
)
from bitcycle.cost import CONVENTIONS, Plan, plan
from bitcycle.cost.findings import Finding, Stance
from bitcycle.cost.planner import check_ladder
from bitcycle.formats.catalogue import Format
from bitcycle.models import MODELS
from bitcycle.precision import MAX_BITS, Bits, bits_text, order
from bitcycle.schedules import Static, parse_schedule
from bitcycle.schedules.base import default_backward
from bitcycle.tasks import TASKS
from bitcycle.tasks.base import Task, model_kind
from bitcycle.train.config import PrecisionConfig, RunConfig
from bitcycle.train.result import RunResult
from bitcycle.train.run_directory import RunDirectory

Bounds = tuple[int | None, int | None]
_ROUNDING = 1e-9  # relative difference of two costs that are equal but for float arithmetic


def plan_by_name(
    name: str,
    *,
    saving: float | None = None,
    bitops: float | None = None,
    low: int | None = None,
    high: int | None = None,
    ladder: Sequence[Bits | str] = (),
    range_test: str | Path | None = None,
    backward: str | None = None,
    cycles: Sequence[int] | None = None,
    tops: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
    skip: Sequence[str] | None = None,
    quantizer: str | None = None,
    total_steps: int | None = None,
    batch_size: int | None = None,
    convention: str = "exact",
    runs: str | Path | None = None,
) -> Plan:
    """`bitcycle.cost.plan` of a model, a recipe or a YAML file.

    Arguments override the file of a range test, and that overrides the bounds of the recipe, or the
    ladder of formats in its forward schedule. Error bits, steps and batch size are the recipe's by
    default. runs: a folder with finished runs, whose results count as well (`find_own_results`).

    >>> found = plan_by_name("resnet8", low=3, high=8, saving=0.4, skip=["fc"])
    >>> found.total_steps, found.samples_per_step, found.rows[0].forward
    (64000, 128, 'stages:5@0.9,8')
    """
    needs_conversion = CONVENTIONS[convention].needs_conversion
    tested = (None, None) if range_test is None else read_bounds(range_test)
    low, high = _fill((low, high), tested)
    rungs = check_ladder(ladder) if ladder else ()
    if rungs and (low, high) != (None, None):
        raise ValueError(
            "--low, --high and --range-test are bounds of integers, and --ladder is given: leave "
            "one of them out"
        )
    top: Bits
    roles: dict[str, str] = {}
    if name in MODELS:
        top = rungs[-1] if rungs else _check_bounds(name, low, high)[1]
        backward = backward or _default_errors(top)
        # the schedule of a ladder has all formats, which decide the quantizer
        forward = f"ramp:{','.join(map(bits_text, rungs))}" if rungs else bits_text(top)
        roles = {"forward": forward, "backward": backward}
    spec = find_spec(
        name, roles=roles, options=options, skip=skip, quantizer=quantizer,
        total_steps=total_steps, batch_size=batch_size,
    )  # fmt: skip
    if not rungs and (low, high) == (None, None):
        rungs = _ladder_of(spec)
    if rungs:
        top = rungs[-1]
    else:
        bounds = _fill((low, high), _bounds_of(spec.precision))
        low, high = _check_bounds(name, *bounds, formats=_formats_of(spec.precision))
        top = high
    errors = _errors_of(spec, name, top) if backward is None else parse_schedule(backward)
    spec = replace(spec, precision=_static(spec.precision, top, str(errors)))
    own: dict[str, Finding] = {}
    notes: tuple[str, ...] = ()
    if runs is not None:
        if name in MODELS:
            raise ValueError(f"{name} is a model; runs are compared with a recipe or a YAML file")
        own, notes = find_own_results(runs, _config_of(name, spec))
    model = spec.build(needs_conversion=needs_conversion)
    is_language = model_kind(MODELS[spec.model]) == "language"
    found = plan(
        model,
        spec.inputs(model, 16 if spec.is_graph else 1),
        low=None if rungs else low,
        high=None if rungs else high,
        ladder=rungs,
        total_steps=spec.total_steps,
        saving=saving,
        bitops=bitops,
        backward=errors,
        cycles=cycles,
        tops=tops,
        samples_per_step=spec.batch_size,
        convention=convention,
        metric="perplexity" if is_language else "accuracy",
        own=own,
    )
    return replace(found, notes=notes)


def read_bounds(path: str | Path) -> tuple[int, int]:
    """Read the bounds from the JSON file that `bitcycle range-test` writes."""
    target = Path(path).expanduser()
    if not target.is_file():
        raise ValueError(f"there is no file {path}; `bitcycle range-test` writes range-test.json")
    try:
        data = json.loads(target.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    bounds = [data.get(key) if isinstance(data, dict) else None for key in ("low", "high")]
    if isinstance(data, dict) and "curve" in data and bounds == [None, None]:
        raise ValueError(f"no bits passed in the range test of {path}; give low and high")
    low, high = bounds
    if type(low) is not int or type(high) is not int:
        raise ValueError(f"{path} has no 'low' and 'high' as `bitcycle range-test` writes them")
    return low, high


def _fill(first: Bounds, second: Bounds) -> Bounds:
    low, high = (b if a is None else a for a, b in zip(first, second, strict=True))
    return low, high


def _check_bounds(
    name: str, low: int | None, high: int | None, formats: Sequence[Format] = ()
) -> tuple[int, int]:
    """The bounds; formats: those of the recipe, which bounds of integers do not fit."""
    for role, bits in (("low", low), ("high", high)):
        if bits is not None and not 1 <= bits <= MAX_BITS:
            raise ValueError(f"{role} ({bits}) must be a number of bits from 1 to {MAX_BITS}")
    if low is None or high is None:
        if formats and (low, high) == (None, None):
            raise ValueError(
                f"the ladder of {name} is not known, because its formats differ by layer or are "
                f"static: give the formats to choose from (--ladder {_suggest_ladder(formats)})"
            )
        missing = " and ".join(k for k, bits in (("low", low), ("high", high)) if bits is None)
        raise ValueError(
            f"the bounds of {name} are not known: give {missing}, or the file of a range test "
            "(--low, --high, --range-test)"
        )
    return low, high


def _bounds_of(precision: PrecisionConfig) -> Bounds:
    """The bounds of the forward schedule; static bits are only an upper bound."""
    if isinstance(precision.forward, dict):
        return None, None
    if precision.auto_high is not None:
        return None, precision.auto_high
    schedule = parse_schedule(precision.forward)
    low, high = (end if isinstance(end, int) else None for end in (schedule.low, schedule.high))
    return None if low == high else low, high


def _formats_of(precision: PrecisionConfig) -> list[Format]:
    """The formats that the forward schedules name."""
    forward = precision.forward
    if precision.auto_high is not None:
        return []
    texts = forward.values() if isinstance(forward, dict) else [forward]
    named = [bits for text in texts for bits in parse_schedule(text).named_bits()]
    return list(dict.fromkeys(bits for bits in named if isinstance(bits, Format)))


def _suggest_ladder(formats: Sequence[Format]) -> str:
    """The formats below 16 bits, or 8 bits, and bf16.

    >>> from bitcycle.formats.catalogue import FORMATS
    >>> _suggest_ladder([FORMATS["bf16"], FORMATS["nvfp4"]]), _suggest_ladder([FORMATS["bf16"]])
    ('nvfp4,bf16', '8,bf16')
    """
    low = sorted((each for each in formats if each.kind != "float"), key=order)
    return ",".join([*(each.name for each in low), "bf16"] if low else ["8", "bf16"])


def _ladder_of(spec: TrainingSpec) -> tuple[Bits, ...]:
    """The formats of the forward schedule, from the fewest bits to the most; () without any."""
    forward = spec.precision.forward
    if isinstance(forward, dict) or spec.precision.auto_high is not None:
        return ()
    bits = sorted(parse_schedule(forward).bit_widths(spec.total_steps), key=order)
    has_ladder = len(bits) > 1 and any(isinstance(each, Format) for each in bits)
    return tuple(bits) if has_ladder else ()


def _errors_of(spec: TrainingSpec, name: str, high: Bits) -> Any:
    precision = spec.precision
    text = precision.backward if precision.error == "inherit" else precision.error
    if precision.is_float or text == "default":
        return parse_schedule(_default_errors(high))
    if isinstance(text, dict):
        raise ValueError(
            f"the error bits of {name} differ by layer: give backward for all layers (--backward)"
        )
    return parse_schedule(text)


def _default_errors(high: Bits) -> str:
    try:
        return bits_text(default_backward(Static(high)))
    except ValueError as error:
        raise ValueError(f"{error} (--backward)") from None


def _static(precision: PrecisionConfig, high: Bits, backward: str) -> PrecisionConfig:
    """The same conversion with static bits at the upper bound."""
    roles = dict.fromkeys(("weight", "act", "error", "grad"), "inherit")
    forward = high if isinstance(high, int) else bits_text(high)
    return replace(precision, forward=forward, backward=backward, **roles)  # type: ignore[arg-type]


# -- own results ----------------------------------------------------------------------------------


@dataclass
class _Measured:
    """The finished runs of one forward schedule: the final value by seed, and their BitOPs."""

    values: dict[int, float] = field(default_factory=dict)
    bitops: list[float] = field(default_factory=list)

    @property
    def cost(self) -> float:
        return sum(self.bitops) / len(self.bitops)


def find_own_results(
    folder: str | Path, config: RunConfig
) -> tuple[dict[str, Finding], tuple[str, ...]]:
    """What the finished runs below a folder say about forward schedules, and a note on them.

    Runs count that have the settings of `config` but for the forward schedule, the seed, the kernel
    and the threads. `config` has static forward bits, the upper bound. A schedule is behind if
    another one that costs no more is better beyond noise, or if the upper bound is.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"there is no folder {folder} with runs")
    top = str(parse_schedule(config.precision.forward))  # type: ignore[arg-type]
    static = f"static {top}/{parse_schedule(config.precision.backward)}"  # type: ignore[arg-type]
    measured, num_skipped = _read_runs(Path(folder), config)
    task = TASKS[config.task]
    found: dict[str, Finding] = {}
    for forward in measured:
        compared = _better_and_no_dearer(forward, measured, task.higher_is_better)
        reference = f"{compared}, which costs no more" if compared else static
        compared = compared or (top if top in measured and forward != top else None)
        if compared is None:
            continue
        difference = paired_difference(measured[forward].values, measured[compared].values)
        if difference is not None and math.isfinite(difference.mean):
            better = _num_better(measured[forward], measured[compared], task.higher_is_better)
            found[forward] = _own_finding(forward, difference, reference, better, task)
    folders = "1 folder" if num_skipped == 1 else f"{num_skipped} folders"
    skipped = f"; skipped {folders} whose files bitcycle cannot read" if num_skipped else ""
    if not measured:
        return {}, (f"own results: no finished run of this set-up below {folder}{skipped}",)
    num_runs = sum(len(each.values) for each in measured.values())
    note = (
        f"own results: {num_runs} finished runs of this set-up with {len(measured)} forward "
        f"schedules below {folder}"
    )
    if top not in measured:
        note += f"; none at {static}, so only schedules that cost no more are compared"
    return found, (note + skipped,)


def _read_runs(folder: Path, config: RunConfig) -> tuple[dict[str, _Measured], int]:
    """The finished runs with these settings, by the text of their forward schedule.

    Also the number of folders that were skipped: their files are not those of a run.
    """
    wanted = _setup_id(config)
    found: dict[str, _Measured] = {}
    num_skipped = 0
    for path in sorted(path.parent for path in folder.rglob("config.yaml")):
        directory = RunDirectory(path)
        if not directory.is_finished:
            continue
        try:
            own = directory.read_config()
            forward = own.precision.forward
            is_one = not isinstance(forward, dict) and own.precision.auto_high is None
            result = RunResult.read(path) if is_one and _setup_id(own) == wanted else None
        except ValueError:
            num_skipped += 1
            continue
        if result is not None:
            measured = found.setdefault(str(parse_schedule(forward)), _Measured())  # type: ignore[arg-type]
            measured.values[own.seed] = result.value
            measured.bitops.append(float(result.cost["bitops"]))
    return found, num_skipped


def _setup_id(config: RunConfig) -> str:
    """Equal for runs that differ in their forward schedule, kernel and threads only."""
    precision = replace(config.precision, forward=8, kernel="auto")
    return config_id(replace(config, precision=precision, threads=None))


def _better_and_no_dearer(
    forward: str, measured: Mapping[str, _Measured], higher_is_better: bool
) -> str | None:
    """The best of the schedules that cost no more and are better beyond noise; None if none is."""
    own, best, gain = measured[forward], None, 0.0
    for name, other in measured.items():
        if name == forward or other.cost > own.cost * (1 + _ROUNDING):
            continue
        difference = paired_difference(other.values, own.values)
        if difference is None or not difference.is_beyond_noise:
            continue
        size = difference.mean if higher_is_better else -difference.mean
        if size > gain:
            best, gain = name, size
    return best


def _num_better(own: _Measured, other: _Measured, higher_is_better: bool) -> tuple[int, int]:
    """(seeds that are better, common seeds)."""
    seeds = own.values.keys() & other.values.keys()
    sign = 1 if higher_is_better else -1
    return sum(sign * (own.values[s] - other.values[s]) > 0 for s in seeds), len(seeds)


def _own_finding(
    forward: str, difference: Difference, against: str, better: tuple[int, int], task: type[Task]
) -> Finding:
    is_better = (difference.mean > 0) == task.higher_is_better
    stance: Stance = "mixed"
    if difference.is_beyond_noise:
        stance = "for" if is_better else "against"
    interval = (
        f"95 % interval {interval_text(difference.low, difference.high)}"
        if difference.low is not None
        else "no interval"
    )
    unit = "points" if task.metric == "accuracy" else f"of {task.metric}"
    return Finding(
        stance=stance,
        text=f"{forward} against {against}: {difference.mean:+.2f} {unit} ({interval}, "
        f"n = {difference.n})",
        source=f"own runs, n = {difference.n}",
        difference=(difference.mean, difference.mean),
        against=against,
        num_better=better[0],
        num_cells=better[1],
        unit="%" if task.metric == "accuracy" else "ppl",
        is_own=True,
    )


def _config_of(name: str, spec: TrainingSpec) -> RunConfig:
    """The configuration of a recipe or file with what was changed for the plan."""
    config = find_run_config(name)
    spec_before = spec_from_config(config, spec.total_steps)
    changes: dict[str, Any] = {"precision": spec.precision}
    if config.steps is not None:
        changes["steps"] = spec.total_steps
    if spec.batch_size != spec_before.batch_size:
        changes["data"] = replace(config.data, batch_size=spec.batch_size)
    options = {
        key: value for key, value in spec.options.items() if spec_before.options.get(key) != value
    }
    model = replace(config.model, options={**config.model.options, **options})
    return replace(config, model=model, **changes)
