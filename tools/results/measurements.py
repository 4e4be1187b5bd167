"""The pages of other measurements: speed, memory, range tests, loss landscapes, and their kinds.

Each kind is recognized by the keys of its files, gathered into one data file, and shown as a page.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any, NamedTuple

from bitcycle.analysis.numbers import (
    decimals_for,
    difference_text,
    fixed,
    share_text,
    summary_text,
)
from bitcycle.analysis.statistics import Difference, paired_difference, summarize_values
from bitcycle.landscape.result import Landscape, Landscapes
from bitcycle.landscape.sharpness import Sharpness
from bitcycle.published import display_name, read_table
from bitcycle.range_curves import SHARE, PrecisionRun, RangeCurve, RelativeCurve
from bitcycle.tables import escape_markdown
from tools.results.commands import (
    gather_files_command,
    number_text,
    portable,
    recipe_needs_data,
    training_command,
)
from tools.results.end_of_run import end_of_run_page, gather_end_of_run, merge_end_of_run
from tools.results.page import (
    Data,
    Page,
    machine_and_time,
    picture,
    recorded_machine_and_time,
    rounded,
    sentence,
    table,
)
from tools.results.pictures import bars
from tools.results.run_times import gather_run_times, merge_run_times, run_times_page
from tools.results.sentences import a, listed

FLOAT, AUTO = "float32", "auto"
RUN_NAME = re.compile(r"(?P<method>.*?)(?:-[0-9a-f]{10})?-seed(?P<seed>[0-9]+)")


# -- range tests --------------------------------------------------------------------------------

RELATIVE, PAPER, RESTARTED = "relative", "paper", "paper, restarted"  # criteria, by column


def gather_range_tests(files: Sequence[Data]) -> dict[str, Any]:
    """The data of files that `bitcycle range-test` wrote, with the metric of every step."""
    tests = [_gather_range_test(found) for found in files]
    for (name, _, seed), number in Counter(map(_test_key, tests)).items():
        if number > 1:
            raise ValueError(f"{number} range tests of {name}, seed {seed}: give one of them")
    return {"kind": "range-tests", "tests": sorted(tests, key=_test_key)}


def _gather_range_test(found: Data) -> dict[str, Any]:
    optional = ("model", "data", "backward", "find_upper", "stop_early")
    words = found.get("overrides", ())
    keys = ("plan", "low", "high", "forward", "bitops", *(k for k in ("cost",) if k in found))
    return {
        "name": found["name"],
        "seed": found["seed"],
        **{key: found[key] for key in optional if key in found},
        "recipe": portable([found.get("recipe", found["name"])])[0],
        "overrides": portable(words, without=("seed", "threads", "output", "range_test")),
        **{key: found[key] for key in keys},
        **recorded_machine_and_time(found),
        "metric_name": found["curve"]["name"],
        **_metrics(found["curve"]),
    }


def _metrics(curve: Data) -> dict[str, Any]:
    """The metric of every step; by the relative criterion [repeat, bits, metrics] of each run."""

    def short(values: Sequence[float | None]) -> list[Any]:
        return [None if value is None else rounded(value, 6) for value in values]

    if curve.get("criterion") == RELATIVE:
        runs = [[run["repeat"], run["bits"], short(run["metric"])] for run in curve["runs"]]
        return {"runs": runs}
    counts: Counter[int] = Counter(curve["bits"])
    return {
        "steps_at": [[bits, number] for bits, number in counts.items()],
        "metric": short(curve["metric"]),
    }


def merge_range_tests(old: Data, new: Data) -> dict[str, Any]:
    """Old and new tests; a new test of the same recipe, criterion and seed replaces the old one."""
    tests = {_test_key(test): test for test in (*old["tests"], *new["tests"])}
    return {"kind": "range-tests", "tests": [tests[key] for key in sorted(tests)]}


def _test_key(test: Data) -> tuple[str, str, int]:
    return test["name"], _criterion(test), test["seed"]


def _criterion(test: Data) -> str:
    if test["plan"].get("criterion", PAPER) == RELATIVE:
        return RELATIVE
    return RESTARTED if test["plan"]["reset"] else PAPER


RELATIVE_COLUMNS = (
    "Lower bound: the fewest bits at which the training loss falls at least {} times as far as at "
    "the most bits, from the same weights and on the same batches; within noise: in a seed, the "
    "decision there or at one bit fewer is within two standard errors. Share: the drop of the loss "
    "over that at the most bits, its mean over n seeds with its least and greatest."
)
DEFAULT_COLUMN = (
    f"Bound at a share of {SHARE}, the default: by the same trainings; a test with that share "
    "would repeat what is within noise."
)
PAPER_COLUMNS = (
    "By the paper's criterion: the first number of bits that raises the metric by more than a "
    "threshold, while training continues from bits to bits, or restarts."
)


def range_tests_page(data: Data) -> Page:
    """The page of the range tests: a row per network, over its seeds."""
    networks: dict[str, dict[str, list[Data]]] = {}
    for test in data["tests"]:
        networks.setdefault(_network_of(test), {}).setdefault(_criterion(test), []).append(test)
    relative = {
        network: [_relative_curve(test) for test in found[RELATIVE]]
        for network, found in networks.items()
        if RELATIVE in found
    }
    paper = {
        (network, criterion): [_curve(test) for test in tests]
        for network, found in networks.items()
        for criterion, tests in found.items()
        if criterion != RELATIVE
    }
    bounds = {
        network: _bound([c.lower_bound for c in found]) for network, found in relative.items()
    }
    at_default = {
        network: _bound_at_default([replace(curve, share=SHARE) for curve in found])
        for network, found in relative.items()
        if any(curve.share != SHARE for own in relative.values() for curve in own)
    }
    by_paper = {key: _bound([c.first_passing for c in found]) for key, found in paper.items()}
    rows = [
        [
            network,
            bounds.get(network, "") + _noise_note(relative.get(network, ())),
            *_shares_near_bound(relative.get(network, ())),
            at_default.get(network, ""),
            _count(found.get(RELATIVE)),
            by_paper.get((network, PAPER), ""),
            by_paper.get((network, RESTARTED), ""),
            _count(found.get(PAPER) or found.get(RESTARTED)),
            _published_bound(next(iter(found.values()))[0]),
        ]
        for network, found in networks.items()
    ]
    shares = " or ".join(sorted({f"{c.share:g}" for found in relative.values() for c in found}))
    name, criterion = _to_show(relative, paper)
    shown = (relative[name] if criterion == RELATIVE else paper[name, criterion])[0]
    seed = networks[name][criterion][0]["seed"]
    return Page(
        name="range-tests",
        title="Precision range tests",
        answer=_range_test_answer(bounds, by_paper, shares),
        picture=(f"The {shown.name} at each number of bits: {name}", picture(shown)),
        table=table(
            ["network", "lower bound", "share there", "share at one bit fewer",
             f"bound at a share of {SHARE}", "n", "by the paper's criterion", "restarted", "n",
             "published"],
            rows,
        ),
        columns=" ".join([
            *([RELATIVE_COLUMNS.format(shares)] if relative else []),
            *([DEFAULT_COLUMN] if at_default else []),
            *([PAPER_COLUMNS] if paper else []),
            "Published: the bound in the CPT paper for this kind of network, with no threshold and "
            f"no n. The picture is of {name}, seed {seed}.",
        ]),
        commands=[
            *(c for found in networks.values() for c in map(_range_test_command, found.values())),
            gather_files_command("RUNS/*-range-test/*.json"),
        ],
        details=[
            *_relative_details(networks, relative),
            *_paper_details(paper),
            escape_markdown(machine_and_time(data["tests"])),
        ],
    )  # fmt: skip


def _count(tests: Sequence[Data] | None) -> str:
    return str(len(tests)) if tests else ""


def _to_show(
    relative: Mapping[str, Sequence[RelativeCurve]],
    paper: Mapping[tuple[str, str], Sequence[RangeCurve]],
) -> tuple[str, str]:
    """The test of the picture: of the network with the most seeds, preferably bits fail in it."""
    failing = [n for n, found in relative.items() if found[0].lower_bound != found[0].precisions[0]]
    if relative:
        return max(failing or relative, key=lambda network: len(relative[network])), RELATIVE
    passing = [key for key, found in paper.items() if found[0].first_passing]
    return (passing or list(paper))[0]


def _range_test_answer(
    bounds: Mapping[str, str], by_paper: Mapping[tuple[str, str], str], shares: str
) -> str:
    counts = Counter(bounds.values())
    said = [f"{bound} bits for {counts[bound]}" for bound in sorted(counts)]
    failed = {network for network, _ in by_paper}
    failed -= {network for (network, _), bound in by_paper.items() if bound != "none"}
    parts = []
    if said:
        of = "1 network" if len(bounds) == 1 else f"{len(bounds)} networks"
        parts.append(
            f"Of {of} the range test with a share of {shares} found a lower bound of {listed(said)}"
        )
    if failed:
        parts.append(f"the paper's criterion finds no bound for {listed(sorted(failed))}")
    elif not said:
        lows = listed(sorted(set(by_paper.values())))
        parts.append(f"by the paper's criterion the networks learn from {lows} bits on")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _relative_details(
    networks: Mapping[str, Mapping[str, Sequence[Data]]],
    relative: Mapping[str, Sequence[RelativeCurve]],
) -> list[str]:
    """The length and cost of the tests by the relative criterion, and the share by bits."""
    if not relative:
        return []
    tried = sorted({bits for found in relative.values() for c in found for bits in c.precisions})
    lengths = []
    for network, found in relative.items():
        tests = networks[network][RELATIVE]
        costs = [test["cost"] for test in tests]
        steps = fmean(cost["steps"] for cost in costs)
        lengths.append([
            network,
            str(tests[0]["plan"]["steps_per_precision"]),
            _span([curve.num_repeats for curve in found]),
            fixed(steps, 0),
            f"{costs[0]['run_steps']:,}",
            _percent(steps / costs[0]["run_steps"]),
            _percent(fmean(c["bitops"] / c["run_bitops"] for c in costs if c["run_bitops"])),
            _open_bits(found),
        ])  # fmt: skip
    return [
        "Relative criterion: the cost of a test next to that of the run of the recipe, with the "
        "schedule that the test found.",
        table(
            ["network", "steps per precision", "repeats", "steps", "steps of the run",
             "share of the steps", "share of the BitOPs", "within noise at the end"],
            lengths,
        ),
        "Relative criterion: the share by bits, its mean over seeds. Fewer bits than shown were "
        "not tested: a test ends at the first bits that clearly fail.",
        table(
            ["network", *(f"{bits} bits" for bits in tried)],
            [
                [network, *(_share(found, bits) for bits in tried)]
                for network, found in relative.items()
            ],
        ),
    ]  # fmt: skip


def _paper_details(paper: Mapping[tuple[str, str], Sequence[RangeCurve]]) -> list[str]:
    """The gains by the paper's criterion."""
    if not paper:
        return []
    tried = sorted({bits for found in paper.values() for c in found for bits in c.precisions})
    return [
        "The paper's criterion: the gain is the mean over n seeds of what training at these bits "
        "added to the metric of training batches. Bits after the lower bound start from a trained "
        "network and gain less, unless the test restarts at every number of bits. -loss is in "
        "nats.",
        table(
            ["network", "metric, threshold", *(f"gain, {bits} bits" for bits in tried)],
            [
                [f"{network} (restarted)" if criterion == RESTARTED else network,
                 f"{found[0].name}, {found[0].threshold:.3g}",
                 *(_gain(found, bits) for bits in tried)]
                for (network, criterion), found in paper.items()
            ],
        ),
    ]  # fmt: skip


def _relative_curve(test: Data) -> RelativeCurve:
    runs = (
        PrecisionRun(repeat, bits, tuple(math.nan if m is None else float(m) for m in metric))
        for repeat, bits, metric in test["runs"]
    )
    plan = test["plan"]
    return RelativeCurve(
        runs=tuple(runs), window=plan["window"], share=plan["share"], name=test["metric_name"]
    )


def _shares_near_bound(curves: Sequence[RelativeCurve]) -> tuple[str, str]:
    """The share at the lower bound, and at one bit fewer, of the seeds' own bounds."""
    at: list[float] = []
    below: list[float] = []
    for curve in curves:
        low = curve.lower_bound
        if low is not None:
            at.append(curve.relative_drop(low))
            below += [curve.relative_drop(low - 1)] if low - 1 in curve.precisions else []
    return _mean_and_span(at), _mean_and_span(below)


def _mean_and_span(values: Sequence[float]) -> str:
    if not values or not all(map(math.isfinite, values)):
        return "" if not values else "not finite"
    low, high = fixed(min(values), 2), fixed(max(values), 2)
    return fixed(fmean(values), 2) + ("" if low == high else f" ({low} to {high})")


def _span(counts: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys([str(min(counts)), str(max(counts))]))


def _percent(share: float) -> str:
    return f"{fixed(100 * share, 1)} %"


def _noise_note(curves: Sequence[RelativeCurve]) -> str:
    """Whether noise may have decided a bound: at its bits, or at one bit fewer."""
    near = [
        curve.decision(bits)
        for curve in curves
        if (low := curve.lower_bound) is not None
        for bits in (low, low - 1)
        if bits in curve.precisions
    ]
    return ", within noise" if "open" in near else ""


def _open_bits(curves: Sequence[RelativeCurve]) -> str:
    """The bits whose decision was within noise, and in how many of the tests."""
    counts = Counter(b for c in curves for b in c.precisions if c.decision(b) == "open")
    return ", ".join(f"{b} bits ({n} of {len(curves)} seeds)" for b, n in sorted(counts.items()))


def _share(curves: Sequence[RelativeCurve], bits: int) -> str:
    shares = [curve.relative_drop(bits) for curve in curves if bits in curve.precisions]
    if not shares:
        return ""
    return fixed(fmean(shares), 2) if all(map(math.isfinite, shares)) else "not finite"


def _curve(test: Data) -> RangeCurve:
    return RangeCurve(
        bits=tuple(bits for bits, number in test["steps_at"] for _ in range(number)),
        metric=tuple(math.nan if m is None else float(m) for m in test["metric"]),
        window=test["plan"]["window"],
        threshold=test["plan"]["threshold"],
        name=test["metric_name"],
    )


def _network_of(test: Data) -> str:
    if "model" not in test:
        return str(test["name"])
    return f"{display_name(test['model'])} on {display_name(test['data'])}"


def _bound(lows: Sequence[int | None]) -> str:
    """The lower bound over the seeds.

    >>> _bound([3, 3]), _bound([10, None, 2]), _bound([None])
    ('3', '2 (1 of 3 seeds), 10 (1 of 3 seeds), none (1 of 3 seeds)', 'none')
    """
    counts = Counter("none" if low is None else str(low) for low in lows)
    if len(counts) == 1:
        return next(iter(counts))
    found = sorted(counts.items(), key=lambda each: (each[0] == "none", each[0].zfill(3)))
    return ", ".join(f"{low} ({n} of {len(lows)} seeds)" for low, n in found)


def _bound_at_default(curves: Sequence[RelativeCurve]) -> str:
    """The bound; none if it is the most bits, which always pass."""
    lows = [low if (low := c.lower_bound) != c.high else None for c in curves]
    high = max(curve.high for curve in curves)
    text = _bound(lows).replace("none", f"none below {high}")
    return text + _noise_note(curves)


def _published_bound(test: Data) -> str:
    model, data = test.get("model", ""), test.get("data", "")
    for row in read_table("range_test"):
        if model.startswith(row["model"]) and data.startswith(row["dataset"]):
            return str(row["lower_bound"])
    return ""


def _gain(curves: Sequence[RangeCurve], bits: int) -> str:
    gains = [curve.gain(bits) for curve in curves if bits in curve.precisions]
    if not gains:
        return ""
    if not all(map(math.isfinite, gains)):
        return "not finite"
    return fixed(fmean(gains), 1 if curves[0].threshold >= 10 else 2, sign=True)


def _range_test_command(tests: Sequence[Data]) -> str:
    """The command of a network's tests by one criterion, with their seeds."""
    test, criterion = tests[0], _criterion(tests[0])
    recipe = test.get("recipe", test["name"])
    words = ["bitcycle", "range-test", recipe]
    own = ("share", "repeats") if criterion == RELATIVE else ("threshold",)
    for key in ("low", "high", "steps_per_precision", "window", *own):
        words += [f"--{key.replace('_', '-')}", number_text(test["plan"][key])]
    flags = {"--reset": criterion == RESTARTED, "--upper": test.get("find_upper"),
             "--stop-early": test.get("stop_early")}  # fmt: skip
    words += [flag for flag, is_set in flags.items() if is_set]
    words += test.get("overrides", [])
    if "--data.root" not in words and recipe_needs_data(recipe):
        words += ["--data.root", "DATA"]
    words += ["--threads", str(test["threads"])] if "threads" in test else []
    words += ["--output", "RUNS", "--seed", str(test["seed"])]
    others = ", ".join(str(other["seed"]) for other in tests[1:])
    return shlex.join(words) + (f"  # and {others}" if others else "")


# -- loss landscapes ----------------------------------------------------------------------------


def gather_landscapes(files: Sequence[Data]) -> dict[str, Any]:
    """The data of files that `bitcycle landscape` wrote."""
    return {"kind": "landscapes", "items": sorted(map(_gather_landscape, files), key=_item_order)}


def _gather_landscape(found: Data) -> dict[str, Any]:
    label = "/".join(found["label"].strip("/").split("/")[-2:])
    name = RUN_NAME.fullmatch(label)
    command = training_command(found.get("trained_by", ()), found.get("trained_threads"))
    origin = ("checkpoint", "step", "shapes", "data", "torch")
    return {
        "label": label,
        "method": name["method"] if name else label,
        "run_seed": int(name["seed"]) if name else 0,
        **{key: found[key] for key in ("precision", "num_samples", "seed", "ranges")},
        **{key: found[key] for key in ("model", "asked") if key in found},
        "overrides": portable(found.get("overrides", ())),
        **({"trained_by": command} if command else {}),
        "origin": {key: found["origin"][key] for key in origin if key in found["origin"]},
        **recorded_machine_and_time({"threads": found["origin"].get("threads"), **found}),
        "alphas": [rounded(a) for a in found["alphas"]],
        "losses": [[rounded(float(x), 5) for x in row] for row in found["losses"]],
    }


def merge_landscapes(old: Data, new: Data) -> dict[str, Any]:
    """Old and new landscapes; a new one of the same run and options replaces the old one."""
    items = {(i["label"], *_landscape_options(i)): i for i in (*old["items"], *new["items"])}
    return {"kind": "landscapes", "items": sorted(items.values(), key=_item_order)}


def _item_order(item: Data) -> tuple[int, bool, str]:
    return item["run_seed"], "static" not in item["method"], item["method"]


def landscapes_page(data: Data) -> Page:
    """The page of the landscapes: the sharpness of every method, and a picture of one run each."""
    items = data["items"]
    origins = [[item["origin"].get(key) for key in ("shapes", "data")] for item in items]
    if len({repr((o, _landscape_options(i))) for o, i in zip(origins, items, strict=True)}) > 1:
        raise ValueError("surfaces of several networks or options cannot be compared")
    surfaces = Landscapes(tuple(map(_landscape, items)))
    methods: dict[str, dict[int, tuple[Landscape, Sharpness]]] = {}
    for item, surface, own in zip(items, surfaces.items, surfaces.sharpness(), strict=True):
        methods.setdefault(_method_label(item), {})[item["run_seed"]] = surface, own
    first = tuple(next(iter(found.values()))[0] for found in methods.values())[:3]
    radii = surfaces.sharpness()[0].radii
    rows = [_landscape_row(method, found, methods) for method, found in methods.items()]
    item = items[0]
    trained = dict.fromkeys(each["trained_by"] for each in items if "trained_by" in each)
    runs = [f"RUNS/{each['label']}" for each in items]
    command = ["bitcycle", "landscape", *runs, *_landscape_options(item), "--output", "FOLDER"]
    command += [f"--threads={item['threads']}"] if "threads" in item else []
    return Page(
        name="landscapes",
        title="Does cyclic precision end in a wider minimum?",
        answer=_landscape_answer(methods, radii[-1]),
        picture=(
            "Contours of the loss around the weights of one run of each method",
            picture(Landscapes(first, level=surfaces.common_level), kind="contour"),
        ),
        table=table(
            ["method", f"rise, r = {radii[-1]:g}", "area", "n", "difference (95 % interval)"],
            [[row[0], *row[-4:]] for row in rows],
        ),
        columns=f"Mean ± standard deviation over n runs. Rise: mean of the loss on a circle of "
        f"radius r, minus that at the centre. Area: where the loss is at most "
        f"{surfaces.common_level:.4g}. A wider minimum has less rise and more area. Differences "
        f"to {next(iter(methods))} are paired by seed.",
        commands=[*trained, shlex.join(command), gather_files_command("FOLDER/*.landscape.json")],
        details=[
            table(
                ["method", "loss", *(f"rise, r = {r:g}" for r in radii)],
                [row[: 2 + len(radii)] for row in rows],
            ),
            escape_markdown(
                f"Grid of {len(item['alphas'])} x {len(item['alphas'])} points to "
                f"{item['alphas'][-1]:g} along two random, filter-normalized directions (seed "
                f"{item['seed']}), the same for all runs; mean loss of {item['num_samples']} "
                f"training samples at {item['precision']}, activations on {item['ranges']} ranges."
            ),
            escape_markdown(machine_and_time(items)),
        ],
    )  # fmt: skip


def _method_label(item: Data) -> str:
    """The label of a method as on other pages, or the name of the run.

    >>> _method_label({"method": "digits-cpt-4-8-8"}), _method_label({"method": "mine"})
    ('CPT 4-8/8', 'mine')
    """
    found = re.fullmatch(r".*-(cpt|static)-([\d-]+)-(\d+)", item["method"])
    if found is None:
        return str(item["method"])
    return f"{found[1].replace('cpt', 'CPT')} {found[2]}/{found[3]}"


def _landscape(item: Data) -> Landscape:
    title = f"{_method_label(item)}, seed {item['run_seed']}"
    return Landscape.from_dict({**item, "betas": item["alphas"], "label": title})


Runs = Mapping[int, tuple[Landscape, Sharpness]]  # by seed


def _rise_difference(runs: Runs, base: Runs) -> Difference | None:
    own, other = ({seed: own.rises[-1] for seed, (_, own) in side.items()} for side in (runs, base))
    return paired_difference(own, other)


def _landscape_row(method: str, runs: Runs, methods: Mapping[str, Runs]) -> list[str]:
    found = [own for _, own in runs.values()]
    numbers = [[surface.center for surface, _ in runs.values()]]
    numbers += [[own.rises[k] for own in found] for k in range(len(found[0].radii))]
    numbers.append([own.area for own in found])
    base = next(iter(methods.values()))
    difference = "" if runs is base else difference_text(_rise_difference(runs, base))
    texts = [summary_text(summarize_values(each)) for each in numbers]
    return [method, *texts, str(len(runs)), difference]


def _landscape_answer(methods: Mapping[str, Runs], radius: float) -> str:
    (base, base_runs), *others = methods.items()
    said, verdicts = list[str](), list[str]()
    for method, runs in others:
        found = _rise_difference(runs, base_runs)
        if found is None or found.low is None or found.high is None:
            continue
        decimals = decimals_for((found.high - found.low) / 2)
        mean, low, high = (_more_or_less(x, decimals) for x in (found.mean, found.low, found.high))
        numbers = f"95 % interval {low} to {high}, n = {found.n}"
        said.append(f"{mean} with {method}{'' if said else f' than with {base}'} ({numbers})")
        word = "a wider minimum" if found.mean < 0 else "a sharper minimum"
        verdicts.append(word if found.is_beyond_noise else "within noise")
    if not said:
        return "There are too few surfaces to compare minima."
    verdict = listed(verdicts)
    if len(set(verdicts)) == 1:
        verdict = f"{'both ' if len(said) == 2 else 'all ' if len(said) > 2 else ''}{verdicts[0]}"
    return f"At distance {radius:g} from the minimum the loss rose {listed(said)}, {verdict}."


def _more_or_less(number: float, decimals: int) -> str:
    return f"{fixed(abs(number), decimals)} {'less' if number < 0 else 'more'}"


def _landscape_options(item: Data) -> list[str]:
    words = ["--grid", str(len(item["alphas"])), "--extent", number_text(item["alphas"][-1])]
    words += ["--samples", str(item["num_samples"]), "--seed", str(item["seed"])]
    words += ["--precision", item.get("asked", item["precision"]), "--ranges", item["ranges"]]
    words += ["--checkpoint", item["origin"].get("checkpoint", "last")]
    return [*words, *item.get("overrides", ())]


# -- speed --------------------------------------------------------------------------------------

ABOUT = ("processor", "sizes", "repeats", "is_quick", "kernels", "bits", "keeps_freed_memory")
HEADLINE_BITS = ("8/8", "3-8/8", "4/8")
SAME = 5  # percent of float32 up to which times are within noise: float32's own were as far apart
ERROR = "error"  # of a variant that could not be timed; a note says why
OTHERS = ("torchao", "brevitas", "qpytorch")
OTHERS_NOTE = (
    "No package does the same work: torchao quantizes nn.Linear alone, Brevitas and QPyTorch "
    "simulate linear layers and convolutions; a network without such layers stays float32."
)


def gather_speed(files: Sequence[Data]) -> dict[str, Any]:
    """The data of the file of `bitcycle bench --json`, without the kernel of every layer."""
    found = _single(files, "bitcycle bench")
    rows = [
        {
            "workload": row["workload"],
            "kernel": row["kernel"],
            "bits": row["bits"],
            "milliseconds": [rounded(1e3 * s, 5) for s in row["seconds"]],
            "is_once": row["is_once"],
            "base": None if row["base"] is None else rounded(1e3 * row["base"], 5),
            "kept_bytes": row["saved_bytes"],
            "products": _products(row["layers"]),
            "notes": list(row["notes"]),
            **({"by_width": _rounded_widths(row["by_width"])} if row.get("by_width") else {}),
        }
        for row in found["rows"]
    ]
    budget = {"budget": found["budget"]} if found.get("budget") else {}
    kept = {key: found[key] for key in ABOUT}
    return {"kind": "speed", **kept, **budget, **recorded_machine_and_time(found), "rows": rows}


def _rounded_widths(by_width: Mapping[str, float]) -> dict[str, Any]:
    return {width: rounded(1e3 * s, 5) for width, s in by_width.items()}


def _single(files: Sequence[Data], who: str) -> Data:
    if len(files) != 1:
        raise ValueError(f"{len(files)} files of {who}: a page shows one")
    return files[0]


def _products(layers: Mapping[str, Sequence[str]]) -> str:
    """The number of matmuls of each kernel, three per layer."""
    counts: Counter[str] = Counter()
    for kernel, _ in layers.values():
        parts = kernel.split("/")
        counts.update(parts * (3 // len(parts)))
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def speed_page(data: Data) -> Page:
    """The page of the speed: a row per network; the times of all bits are in the details."""
    base, ratios, cells = _speed_cells(data)
    processor = data["processor"]
    features = {"VNNI": "has_vnni", "BF16": "has_bf16", "AMX": "has_amx"}
    has = ", ".join(f"{key} {'yes' if processor[k] else 'no'}" for key, k in features.items())
    if processor.get("instruction_set"):
        has += f", native library {processor['instruction_set']}"
    if data["keeps_freed_memory"]:
        has += ", freed memory kept in the process (all rows)"
    notes = dict.fromkeys(note for row in data["rows"] for note in row["notes"])
    variants = list(dict.fromkeys(variant for _, variant in cells))
    drawn = [v for v in (*map(f"{AUTO} {{}}".format, HEADLINE_BITS), *OTHERS) if v in variants]
    series = {
        variant.replace(AUTO, "bitcycle"): [ratios.get((name, variant)) for name in base]
        for variant in drawn
    }
    quick = " Measured with --quick: too small to tell." if data["is_quick"] else ""
    return Page(
        name="speed",
        title="Speed of a training step",
        answer=f"{sentence(speed_words(data))}",
        picture=(
            ("Time of a training step over that of float32",
             bars(list(base), series, "time of a step, float32 = 1 (left: faster)"))
            if series else None
        ),
        table=speed_table(data, OTHERS),
        columns="Time of a step (forward, backward and SGD) over that of float32: the fastest of "
        f"up to {data['repeats']} repeats. 4/8: 4 bits forward, 8 backward; 3-8/8: the mean over "
        f"the steps of a CPT cycle. Bold: faster; ≈: within noise, or within {SAME} % of "
        "float32, by which times of the same work have differed; the others are slower. "
        + (OTHERS_NOTE if any(name in variants for name in OTHERS) else "")
        + quick,
        commands=[_bench_command(data), gather_files_command("speed.json")],
        details=[
            table(
                ["forward/backward bits", *base],
                [["float32, ms", *(fixed(min(row["milliseconds"]), 1) for row in base.values())],
                 *([variant, *(cells.get((name, variant), "") for name in base)]
                   for variant in variants)],
            ),
            "Faster: the lower quartile is below the fastest float32 step. Slower: even the "
            "fastest step is above the lower quartile of float32. Variants take turns.",
            "\n".join(f"- {escape_markdown(f'{k}: {v}')}" for k, v in data["sizes"].items()),
            "\n".join(f"- {escape_markdown(note)}" for note in notes),
            escape_markdown(f"{_noise(data['rows'])}{has}. {machine_and_time([data])}"),
        ],
    )  # fmt: skip


Cells = Mapping[tuple[str, str], str]  # by workload and variant


def _speed_cells(data: Data) -> tuple[dict[str, Data], dict[tuple[str, str], float], Cells]:
    """The row of float32 by workload, ratios to it, and their texts; an error has no ratio."""
    timed = [row for row in data["rows"] if row["milliseconds"]]
    base = {row["workload"]: row for row in timed if row["kernel"] == FLOAT}
    ratios: dict[tuple[str, str], float] = {}
    cells: dict[tuple[str, str], str] = {}
    for row in (row for row in data["rows"] if row["kernel"] != FLOAT):
        key = row["workload"], f"{row['kernel']} {short_bits(row['bits'])}".strip()
        if row["milliseconds"] and row["base"]:
            ratios[key] = min(row["milliseconds"]) / row["base"]
            cells[key] = _ratio(row, base[row["workload"]])
        else:
            cells[key] = ERROR
    return base, ratios, cells


def short_bits(text: str) -> str:
    """Forward and backward bits, where weight and act have the same.

    >>> short_bits("w4a4e8"), short_bits("w4a8e8"), short_bits("3-8/8")
    ('4/8', 'w4a8e8', '3-8/8')
    """
    found = re.fullmatch(r"w(\d+)a\1e(\d+)", text)
    return text if found is None else f"{found[1]}/{found[2]}"


def speed_words(data: Data) -> str:
    """The best, the median and the worst time of a step at 8/8, of float32's."""
    processor = data["processor"]
    found = processor["capability"] + (" and VNNI" if processor["has_vnni"] else "")
    threads = processor["num_threads"]
    where = f"on {a(processor['name'])} with {found} ({threads} thread{'s' * (threads > 1)})"
    own = f"{AUTO} {HEADLINE_BITS[0]}"
    ratios = sorted(
        (r, name) for (name, variant), r in _speed_cells(data)[1].items() if variant == own
    )
    if not ratios:
        return f"{where} no step at {HEADLINE_BITS[0]} was timed"
    middle = median(ratio for ratio, _ in ratios)
    name = next((f" ({name})" for ratio, name in ratios if ratio == middle), "")
    said = [f"{fixed(ratio, 2)} ({name})" for ratio, name in ratios]
    if len(ratios) > 2:
        ends = [f"{fixed(ratio, 2)} {{}} ({name})" for ratio, name in (ratios[0], ratios[-1])]
        said = [ends[0].format("at best"), f"{fixed(middle, 2)} in the median{name}",
                ends[1].format("at worst")]  # fmt: skip
    return f"{where} a training step at {HEADLINE_BITS[0]} took, of float32's time, {listed(said)}"


def speed_table(data: Data, others: Sequence[str] = ()) -> str:
    """A row per network: `auto` at the bits of the headline, and other packages."""
    base, _, cells = _speed_cells(data)
    variants = [*map(f"{AUTO} {{}}".format, HEADLINE_BITS), *others]
    return table(
        ["network", "float32, ms", *HEADLINE_BITS, *others],
        [
            [name, fixed(min(own["milliseconds"]), 1),
             *(cells.get((name, variant), "") for variant in variants)]
            for name, own in base.items()
        ],
    )  # fmt: skip


def others_table(data: Data) -> str:
    """A row per package, a column per network: the ratio to float32 at 8/8."""
    base, _, cells = _speed_cells(data)
    names = {f"{AUTO} {HEADLINE_BITS[0]}": f"bitcycle {HEADLINE_BITS[0]}"} | {o: o for o in OTHERS}
    rows = [
        [title, *(cells.get((name, variant), "") for name in base)]
        for variant, title in names.items()
        if any((name, variant) in cells for name in base)
    ]
    return table(["package", *base], rows)


def _quartile(row: Data) -> float:
    times = sorted(row["milliseconds"])
    return float(times[len(times) // 4])


def _verdict(row: Data, base: Data) -> str:
    """Slower or faster than float32, or within noise."""
    if row["is_once"] or base["is_once"]:
        return "once"
    if abs(round(100 * min(row["milliseconds"]) / row["base"]) - 100) <= SAME:
        return "noise"
    if min(row["milliseconds"]) > _quartile(base):
        return "slower"
    return "faster" if _quartile(row) < min(base["milliseconds"]) else "noise"


def _ratio(row: Data, base: Data) -> str:
    ratio = fixed(min(row["milliseconds"]) / row["base"], 2)
    texts = {"faster": f"**{ratio}**", "noise": f"≈ {ratio}", "once": f"{ratio} (once)"}
    return texts.get(_verdict(row, base), ratio)


def _noise(rows: Sequence[Data]) -> str:
    """The largest difference between variants whose products use the same kernels, if any do."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in (row for row in rows if row["products"] and row["milliseconds"]):
        key = row["workload"], row["bits"], row["products"]
        groups.setdefault(key, []).append(min(row["milliseconds"]))
    alike = [max(times) / min(times) for times in groups.values() if len(times) > 1]
    if not alike:
        return ""
    return f"Variants with the same kernels are up to {100 * (max(alike) - 1):.0f} % apart. "


def _bench_command(data: Data) -> str:
    words = ["bitcycle", "bench", "--threads", str(data["processor"]["num_threads"])]
    words += ["--repeats", str(data["repeats"])]
    words += ["--budget", number_text(data["budget"])] if "budget" in data else []
    for workload in dict.fromkeys(row["workload"] for row in data["rows"]):
        words += ["--workload", workload]
    for key in ("kernels", "bits"):
        words += [f"--{key}", *data[key]] if data[key] else []
    words += ["--quick"] if data["is_quick"] else []
    return shlex.join([*words, "--json", "speed.json"])


# -- memory -------------------------------------------------------------------------------------


def gather_memory(files: Sequence[Data]) -> dict[str, Any]:
    """The data of the file that `benchmarks/saved_memory.py --json` wrote."""
    found = _single(files, "benchmarks/saved_memory.py")
    rows = [
        {k: rounded(v, 6) if isinstance(v, float) else v for k, v in row.items()}
        for row in found["rows"]
    ]
    more = {key: found[key] for key in ("only", "sizes") if found.get(key)}
    return {"kind": "memory", **recorded_machine_and_time(found), **more, "rows": rows}


def memory_page(data: Data) -> Page:
    """The page of the memory: a row per model, a column per kernel."""
    rows = data["rows"]
    models, kernels = (list(dict.fromkeys(row[key] for row in rows)) for key in ("model", "kernel"))
    cells = {(row["model"], row["kernel"]): row for row in rows}
    spans: dict[str, list[str]] = {}
    for kernel in kernels:
        ratios = [row["ratio"] for row in rows if row["kernel"] == kernel]
        span = " to ".join(dict.fromkeys(share_text(end(ratios)) for end in (min, max)))
        spans.setdefault(span, []).append(kernel)
    said = [f"{span} with the kernel {' or '.join(found)}" for span, found in spans.items()]
    series = {k: [cells.get((model, k), {}).get("ratio") for model in models] for k in kernels}
    return Page(
        name="memory",
        title="Memory kept for the backward pass",
        answer="Of the bytes that float32 keeps for the backward pass, training at 8 bits keeps "
        f"{listed(said)}.",
        picture=("Bytes kept for the backward pass over those of float32",
                 bars(models, series, "bytes kept for the backward pass, float32 = 1")),
        table=table(
            ["model", "float32, MiB", *(f"{kernel}, MiB (ratio)" for kernel in kernels)],
            [
                [model, fixed(cells[model, kernels[0]]["float32_bytes"] / 2**20, 1),
                 *(_bytes(cells.get((model, kernel))) for kernel in kernels)]
                for model in models
            ],
        ),
        columns="What the autograd graph keeps alive after a forward pass at 8 bits, without "
        "parameters, buffers and inputs. Counted, not timed: every run gives the same bytes.",
        commands=[
            "python benchmarks/saved_memory.py "
            + "".join(f"--only {model} " for model in data.get("only", ()))
            + "--json memory.json",
            gather_files_command("memory.json"),
        ],
        details=[
            "\n".join(
                f"- {escape_markdown(f'{model}: {what}')}"
                for model, what in data.get("sizes", {}).items()
            ),
            escape_markdown(machine_and_time([data])),
        ],
    )  # fmt: skip


def _bytes(row: Data | None) -> str:
    return "" if row is None else f"{fixed(row['bytes'] / 2**20, 1)} ({fixed(row['ratio'], 2)})"


# -- kinds --------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind of measurement. keys: what its files have. merge: adds to earlier measurements."""

    keys: frozenset[str]
    gather: Callable[[Sequence[Data]], dict[str, Any]]
    page: Callable[[Data], Page]
    merge: Callable[[Data, Data], dict[str, Any]] | None = None


KINDS = {
    "speed": Kind(frozenset({"processor", "sizes", "rows", "repeats"}), gather_speed, speed_page),
    "run-times": Kind(
        frozenset({"study", "networks", "instruction_set"}),
        gather_run_times,
        run_times_page,
        merge_run_times,
    ),
    "end-of-run": Kind(
        frozenset({"benchmark", "runs", "control"}),
        gather_end_of_run,
        end_of_run_page,
        merge_end_of_run,
    ),
    "memory": Kind(frozenset({"benchmark", "rows"}), gather_memory, memory_page),
    "range-tests": Kind(
        frozenset({"plan", "curve", "name", "seed"}),
        gather_range_tests,
        range_tests_page,
        merge_range_tests,
    ),
    "landscapes": Kind(
        frozenset({"alphas", "losses", "origin", "precision"}),
        gather_landscapes,
        landscapes_page,
        merge_landscapes,
    ),
}


def kind_of(found: Data) -> str:
    """The kind of measurement that wrote a file."""
    for name, kind in KINDS.items():
        if kind.keys <= found.keys():
            return name
    raise ValueError(
        f"is none of: {', '.join(KINDS)}; give what bitcycle bench --json, range-test, landscape, "
        "benchmarks/{run_time,end_of_run,saved_memory}.py --json wrote"
    )
