"""The pages of other measurements: range tests, loss landscapes, speed, memory.

Each kind is recognized by the keys of its files, gathered into one data file, and shown as a page.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from bitcycle.analysis.numbers import difference_text, fixed, summary_text
from bitcycle.analysis.statistics import Difference, paired_difference, summarize_values
from bitcycle.landscape.result import Landscape, Landscapes
from bitcycle.landscape.sharpness import Sharpness
from bitcycle.published import display_name, read_table
from bitcycle.range_test import RangeCurve
from bitcycle.tables import escape_markdown
from bitcycle.train.run_directory import MACHINE
from tools.results.commands import number_text, portable, recipe_needs_data, training_command
from tools.results.page import Data, Page, machine_and_time, picture, rounded, table

FLOAT, AUTO = "float32", "auto"
RUN_NAME = re.compile(r"(?P<method>.*?)(?:-[0-9a-f]{10})?-seed(?P<seed>[0-9]+)")


def _machine_and_time(found: Data) -> dict[str, Any]:
    """Machine, threads and seconds, if the file has them."""
    kept: dict[str, Any] = {}
    if found.get("machine"):
        kept["machine"] = {key: found["machine"][key] for key in MACHINE if key in found["machine"]}
    kept |= {key: found[key] for key in ("threads", "jobs") if found.get(key)}
    if found.get("seconds") is not None:
        kept["seconds"] = rounded(found["seconds"], 6)
    return kept


def _gather_command(files: str) -> str:
    return f"python -m tools.results gather {files} --to results"


# -- range tests --------------------------------------------------------------------------------


def gather_range_tests(files: Sequence[Data]) -> dict[str, Any]:
    """The data of files that `bitcycle range-test` wrote, with the metric of every step."""
    tests = [_gather_range_test(found) for found in files]
    for (name, _, seed), number in Counter(map(_test_key, tests)).items():
        if number > 1:
            raise ValueError(f"{number} range tests of {name}, seed {seed}: give one of them")
    return {"kind": "range-tests", "tests": sorted(tests, key=_test_key)}


def _gather_range_test(found: Data) -> dict[str, Any]:
    curve = found["curve"]
    counts = Counter(curve["bits"])
    optional = ("model", "data", "backward", "find_upper", "stop_early")
    words = found.get("overrides", ())
    return {
        "name": found["name"],
        "seed": found["seed"],
        **{key: found[key] for key in optional if key in found},
        "recipe": portable([found.get("recipe", found["name"])])[0],
        "overrides": portable(words, without=("seed", "threads", "output", "range_test")),
        **{key: found[key] for key in ("plan", "low", "high", "forward", "bitops")},
        **_machine_and_time(found),
        "metric_name": curve["name"],
        "steps_at": [[bits, number] for bits, number in counts.items()],
        "metric": [None if m is None else rounded(m, 6) for m in curve["metric"]],
    }


def merge_range_tests(old: Data, new: Data) -> dict[str, Any]:
    """Old and new tests; a new test of the same recipe and seed replaces the old one."""
    tests = {_test_key(test): test for test in (*old["tests"], *new["tests"])}
    return {"kind": "range-tests", "tests": [tests[key] for key in sorted(tests)]}


def _test_key(test: Data) -> tuple[str, bool, int]:
    return test["name"], test["plan"]["reset"], test["seed"]


def range_tests_page(data: Data) -> Page:
    """The page of the range tests: a row per network over its seeds."""
    networks: dict[str, list[Data]] = {}
    for test in data["tests"]:
        networks.setdefault(_network_of(test), []).append(test)
    curves = {network: [_curve(test) for test in tests] for network, tests in networks.items()}
    tried = sorted({bits for found in curves.values() for c in found for bits in c.precisions})
    bounds = {
        network: _bound([c.first_passing for c in found]) for network, found in curves.items()
    }
    rows = [
        [network, bounds[network], _published_bound(networks[network][0]), str(len(found)),
         f"{found[0].name}, {found[0].threshold:.3g}", *(_gain(found, bits) for bits in tried)]
        for network, found in curves.items()
    ]  # fmt: skip
    said = []
    for bound in dict.fromkeys(bounds.values()):
        found = [network for network, own in bounds.items() if own == bound]
        how = "did not pass at any precision" if bound == "none" else f"learned from {bound} bits"
        said.append(f"{', '.join(found)} {how}")
    shown = next((n for n, found in curves.items() if found[0].first_passing), next(iter(curves)))
    return Page(
        name="range-tests",
        title="Precision range tests",
        answer=f"In a short training at rising bits {'; '.join(said)}.",
        picture=(f"The metric at rising bits: {shown}", picture(curves[shown][0])),
        table=table(
            ["network", "lower bound", "published", "n", "metric, threshold",
             *(f"gain, {bits} bits" for bits in tried)],
            rows,
        ),
        columns=f"The picture is of {shown}, seed {networks[shown][0]['seed']}. Gain: mean over "
        "n seeds of what training at these bits added to the metric of training batches. The "
        "lower bound is the first number of bits whose gain exceeds the threshold; bits after it "
        "start from a trained network and gain less, unless the test restarts at every number of "
        "bits. -loss is in nats. Published: the bound that the CPT paper names for this kind of "
        "network, with no threshold and no n.",
        commands=[*_range_test_commands(networks), _gather_command("RUNS/*-range-test/*.json")],
        details=[escape_markdown(machine_and_time(data["tests"]))],
    )  # fmt: skip


def _curve(test: Data) -> RangeCurve:
    return RangeCurve(
        bits=tuple(bits for bits, number in test["steps_at"] for _ in range(number)),
        metric=tuple(math.nan if m is None else float(m) for m in test["metric"]),
        window=test["plan"]["window"],
        threshold=test["plan"]["threshold"],
        name=test["metric_name"],
    )


def _network_of(test: Data) -> str:
    place = test["name"]
    if "model" in test:
        place = f"{display_name(test['model'])} on {display_name(test['data'])}"
    return f"{place} (restarted)" if test["plan"]["reset"] else place


def _bound(lows: Sequence[int | None]) -> str:
    """The lower bound over the seeds.

    >>> _bound([3, 3]), _bound([2, None, 2]), _bound([None])
    ('3', '2 (2 of 3 seeds), none (1 of 3 seeds)', 'none')
    """
    counts = Counter("none" if low is None else str(low) for low in lows)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{low} ({n} of {len(lows)} seeds)" for low, n in sorted(counts.items()))


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


def _range_test_commands(networks: Mapping[str, Sequence[Data]]) -> list[str]:
    """A command per network, with its seeds."""
    lines = []
    for tests in networks.values():
        test = tests[0]
        recipe = test.get("recipe", test["name"])
        words = ["bitcycle", "range-test", recipe]
        for key in ("low", "high", "steps_per_precision", "window", "threshold"):
            words += [f"--{key.replace('_', '-')}", number_text(test["plan"][key])]
        flags = {"--reset": test["plan"]["reset"], "--upper": test.get("find_upper"),
                 "--stop-early": test.get("stop_early")}  # fmt: skip
        words += [flag for flag, is_set in flags.items() if is_set]
        words += test.get("overrides", [])
        if "--data.root" not in words and recipe_needs_data(recipe):
            words += ["--data.root", "DATA"]
        words += ["--threads", str(test["threads"])] if "threads" in test else []
        words += ["--output", "RUNS", "--seed", str(test["seed"])]
        others = ", ".join(str(other["seed"]) for other in tests[1:])
        lines.append(shlex.join(words) + (f"  # and {others}" if others else ""))
    return lines


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
        **_machine_and_time({"threads": found["origin"].get("threads"), **found}),
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
        methods.setdefault(item["method"], {})[item["run_seed"]] = surface, own
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
        answer=_landscape_answer(methods),
        picture=(
            "Contours of the loss around the weights of one run of each method",
            picture(Landscapes(first, level=surfaces.common_level), kind="contour"),
        ),
        table=table(
            ["method", "loss", *(f"rise, r = {r:g}" for r in radii), "area", "n",
             f"difference of rise, r = {radii[-1]:g} (95 % interval)"],
            rows,
        ),
        columns=f"Mean ± standard deviation over n runs. Rise: mean of the loss on a circle of "
        f"radius r, minus that at the centre. Area: where the loss is at most "
        f"{surfaces.common_level:.4g}. A wider minimum has less rise and more area. Differences "
        f"to {next(iter(methods))} are paired by seed.",
        commands=[*trained, shlex.join(command), _gather_command("FOLDER/*.landscape.json")],
        details=[
            escape_markdown(
                f"Grid of {len(item['alphas'])} x {len(item['alphas'])} points to "
                f"{item['alphas'][-1]:g} along two random, filter-normalized directions (seed "
                f"{item['seed']}), the same for all runs; mean loss of {item['num_samples']} "
                f"training samples at {item['precision']}, activations on {item['ranges']} ranges."
            ),
            escape_markdown(machine_and_time(items)),
        ],
    )  # fmt: skip


def _landscape(item: Data) -> Landscape:
    label = f"{item['method']}, seed {item['run_seed']}"
    return Landscape.from_dict({**item, "betas": item["alphas"], "label": label})


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


def _landscape_answer(methods: Mapping[str, Runs]) -> str:
    (base, base_runs), *others = methods.items()
    said = []
    for method, runs in others:
        difference = _rise_difference(runs, base_runs)
        if difference is None or difference.is_beyond_noise is None:
            continue
        word = "wider" if difference.mean < 0 else "sharper"
        word = word if difference.is_beyond_noise else "no wider or sharper beyond noise"
        said.append(
            f"{method} ended in a minimum that is {word} (rise {difference_text(difference)}, "
            f"n = {difference.n})"
        )
    if not said:
        return "There are too few surfaces to compare."
    return f"Next to {base}, {'; '.join(said)}."


def _landscape_options(item: Data) -> list[str]:
    words = ["--grid", str(len(item["alphas"])), "--extent", number_text(item["alphas"][-1])]
    words += ["--samples", str(item["num_samples"]), "--seed", str(item["seed"])]
    words += ["--precision", item.get("asked", item["precision"]), "--ranges", item["ranges"]]
    words += ["--checkpoint", item["origin"].get("checkpoint", "last")]
    return [*words, *item.get("overrides", ())]


# -- speed --------------------------------------------------------------------------------------

ASKED = ("kernels", "bits", "keeps_freed_memory")  # that older files do not have
HEADLINE_BITS = {"8/8": "at 8 bits", "3-8/8": "over a CPT cycle from 3 to 8", "4/8": "at 4"}


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
    keys = ("processor", "sizes", "repeats", "is_quick", *(k for k in ASKED if k in found))
    budget = {"budget": found["budget"]} if found.get("budget") else {}
    kept = {key: found[key] for key in keys}
    return {"kind": "speed", **kept, **budget, **_machine_and_time(found), "rows": rows}


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
    """The page of the speed: a row per kernel and bits, a column per network."""
    rows = [row for row in data["rows"] if row["milliseconds"]]
    base = {row["workload"]: row for row in rows if row["kernel"] == FLOAT}
    others = [row for row in rows if row["kernel"] != FLOAT and row["base"]]
    variants = list(dict.fromkeys((row["kernel"], row["bits"]) for row in others))
    cells = {
        (row["workload"], row["kernel"], row["bits"]): _ratio(row, base[row["workload"]])
        for row in others
    }
    processor = data["processor"]
    features = {"VNNI": "has_vnni", "BF16": "has_bf16", "AMX": "has_amx"}
    has = ", ".join(f"{key} {'yes' if processor[k] else 'no'}" for key, k in features.items())
    if processor.get("instruction_set"):
        has += f", native library {processor['instruction_set']}"
    if data.get("keeps_freed_memory"):
        has += ", freed memory kept in the process (all rows)"
    notes = dict.fromkeys(note for row in data["rows"] for note in row["notes"])
    return Page(
        name="speed",
        title="Speed of a training step",
        answer=_speed_answer(data, others, base),
        table=table(
            ["forward/backward bits", *base],
            [
                ["float32, ms", *(fixed(min(row["milliseconds"]), 1) for row in base.values())],
                *(
                    [f"{kernel} {short_bits(bits)}".strip(),
                     *(cells.get((name, kernel, bits), "") for name in base)]
                    for kernel, bits in variants
                ),
            ],
        ),
        columns="Time of a step (forward, backward and SGD) over that of float32: the fastest of "
        f"up to {data['repeats']} repeats, variants in turn. 4/8: 4 bits forward, 8 backward; "
        "3-8/8: the mean over the steps of a CPT cycle from 3 to 8 bits. Bold: faster, its lower "
        "quartile is below the fastest float32 step. ≈: within noise. All others are slower: even "
        "their fastest step is above the lower quartile of float32.",
        commands=[_bench_command(data), _gather_command("speed.json")],
        details=[
            "\n".join(f"- {escape_markdown(f'{k}: {v}')}" for k, v in data["sizes"].items()),
            "\n".join(f"- {escape_markdown(note)}" for note in notes),
            escape_markdown(f"{_noise(rows)}{has}. {machine_and_time([data])}"),
        ],
    )  # fmt: skip


def short_bits(text: str) -> str:
    """Forward and backward bits, where weight and act have the same.

    >>> short_bits("w4a4e8"), short_bits("w4a8e8"), short_bits("3-8/8")
    ('4/8', 'w4a8e8', '3-8/8')
    """
    found = re.fullmatch(r"w(\d+)a\1e(\d+)", text)
    return text if found is None else f"{found[1]}/{found[2]}"


def _speed_answer(data: Data, others: Sequence[Data], base: Mapping[str, Data]) -> str:
    """The range of ratios of `auto` at the bits of the headline; without it, counts."""
    processor = data["processor"]
    name, capability = processor["name"], processor["capability"]
    where = f"On {name} ({capability}, {processor['num_threads']} threads)"
    quick = " Measured with --quick: too small to tell." if data["is_quick"] else ""
    said = []
    for bits, words in HEADLINE_BITS.items():
        own = [row for row in others if (row["kernel"], short_bits(row["bits"])) == (AUTO, bits)]
        if own:
            ratios = [min(row["milliseconds"]) / row["base"] for row in own]
            span = " to ".join(dict.fromkeys(fixed(each(ratios), 2) for each in (min, max)))
            said.append(f"{span} {words}")
    if said:
        return f"{where} a training step takes, of float32's time, {', '.join(said)}.{quick}"
    counts = Counter(_verdict(row, base[row["workload"]]) for row in others)
    return (
        f"{where} {counts['slower']} of {len(others)} quantized variants of a training step take "
        f"longer than float32, {counts['faster']} less, {counts['noise']} as long within noise."
        f"{quick}"
    )


def speed_table(data: Data) -> str:
    """A short table for a document: a row per network, `auto` at the bits of the headline."""
    rows = [row for row in data["rows"] if row["milliseconds"]]
    base = {row["workload"]: row for row in rows if row["kernel"] == FLOAT}
    cells = {
        (row["workload"], short_bits(row["bits"])): _ratio(row, base[row["workload"]])
        for row in rows
        if row["kernel"] == AUTO and row["base"]
    }
    return table(
        ["network", "float32, ms", *HEADLINE_BITS],
        [
            [name, fixed(min(own["milliseconds"]), 1),
             *(cells.get((name, bits), "") for bits in HEADLINE_BITS)]
            for name, own in base.items()
        ],
    )  # fmt: skip


def _quartile(row: Data) -> float:
    times = sorted(row["milliseconds"])
    return float(times[len(times) // 4])


def _verdict(row: Data, base: Data) -> str:
    """Slower or faster than float32, or within noise."""
    if row["is_once"] or base["is_once"]:
        return "once"
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
    for row in (row for row in rows if row["products"]):
        key = row["workload"], row["bits"], row["products"]
        groups.setdefault(key, []).append(min(row["milliseconds"]))
    alike = [max(times) / min(times) for times in groups.values() if len(times) > 1]
    if not alike:
        return ""
    return f"Variants that do the same work are up to {100 * (max(alike) - 1):.0f} % apart. "


def _bench_command(data: Data) -> str:
    words = ["bitcycle", "bench", "--threads", str(data["processor"]["num_threads"])]
    words += ["--repeats", str(data["repeats"])]
    words += ["--budget", number_text(data["budget"])] if "budget" in data else []
    for workload in dict.fromkeys(row["workload"] for row in data["rows"]):
        words += ["--workload", workload]
    if "bits" in data:
        kernels, bits = data["kernels"], data["bits"]
    else:  # an older file: what it has
        kernels = dict.fromkeys(row["kernel"] for row in data["rows"] if row["kernel"] != FLOAT)
        bits = dict.fromkeys(row["bits"] for row in data["rows"] if row["bits"])
    words += ["--kernels", *kernels] if kernels else []
    words += ["--bits", *bits] if bits else []
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
    return {"kind": "memory", **_machine_and_time(found), **more, "rows": rows}


def memory_page(data: Data) -> Page:
    """The page of the memory: a row per model, a column per kernel."""
    rows = data["rows"]
    models, kernels = (list(dict.fromkeys(row[key] for row in rows)) for key in ("model", "kernel"))
    cells = {(row["model"], row["kernel"]): row for row in rows}
    said = []
    for kernel in kernels:
        ratios = [row["ratio"] for row in rows if row["kernel"] == kernel]
        low, high = fixed(min(ratios), 2), fixed(max(ratios), 2)
        said.append(f"{kernel} keeps {low if low == high else f'{low} to {high}'} times")
    return Page(
        name="memory",
        title="Memory kept for the backward pass",
        answer=f"At 8 bits {', '.join(said)} the bytes of float32.",
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
            _gather_command("memory.json"),
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
        f"is none of: {', '.join(KINDS)}; give what bitcycle bench --json, range-test, landscape "
        "or benchmarks/saved_memory.py --json wrote"
    )
