"""A study whose runs were never trained: folders with made-up numbers and hostile names."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from bitcycle.cost import Cost, LayerCost
from bitcycle.range_criteria import PrecisionRun, RangeTest, RangeTestConfig
from bitcycle_lab.bench import BenchResult, Processor, StepTime
from bitcycle_lab.landscape import Landscape
from bitcycle_lab.study.demo import WORKLOAD, DemoResult
from bitcycle_lab.study.results import write_failures
from bitcycle_lab.study.study import Method, Study, StudyRun
from bitcycle_lab.tasks import ModelConfig
from bitcycle_lab.train.config import PrecisionConfig, RunConfig, TrackingConfig
from bitcycle_lab.train.config_file import to_dict, to_yaml
from tests.bitcycle_lab.study.made_up import method, study_result

SCRIPT = "<script>document.title='hurt'</script>"
BREAKOUT = "</script><img src=x onerror=\"document.title='hurt'\">"
BASELINE = "static 8/8"
STEPS = 40


def config(name: str = "run", forward: int | str = 8, **changes: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "name": name,
        "model": ModelConfig(name="digits_mlp", options={"width": 16}),
        "precision": PrecisionConfig(forward=forward, backward=8),
        "tracking": TrackingConfig(log_every=4, tensorboard=False),
        "steps": STEPS,
        "threads": 1,
    }
    return RunConfig(**{**settings, **changes})


def study(**changes: Any) -> Study:
    """A baseline, two methods with hostile names, and one that has not begun."""
    settings: dict[str, Any] = {
        "name": "made up & <b>bold</b>".replace("/", ""),
        "description": f"what if {SCRIPT}?",
        "methods": (
            Method(label=BASELINE, config=config("static")),
            Method(label=f"CPT {SCRIPT}", config=config("<script>", "CR:3-8:4")),
            Method(label=f"low %{{x}} {BREAKOUT}", config=config("low", 3)),
            Method(label="later", config=config("later", 4)),
        ),
        "seeds": (0, 1),
        "baseline": BASELINE,
        "notes": (f"a note {BREAKOUT}",),
    }
    return Study(**{**settings, **changes})


VALUES = {BASELINE: (90.0, 92.0), "CPT": (93.0, 93.0), "low": (80.0, 84.0)}
BITOPS = {BASELINE: 1000, "CPT": 600, "low": 300}


def write_study(output: Path, made: Study | None = None) -> Study:
    """Folders for all but the last method; the second run of the third failed."""
    made = made or study()
    failures = {}
    for run in made.runs(str(output)):
        if run.method is made.methods[-1]:
            continue
        if run.method is made.methods[2] and run.seed == 1:
            failures[run.config.run_name] = f"the loss is NaN {BREAKOUT}"
            write_run(run, result=None)
            continue
        start = next(key for key in VALUES if run.method.label.startswith(key))
        write_run(run, result=result_of(run.config, VALUES[start][run.seed], BITOPS[start]))
    write_failures(output, failures)
    return made


def result_of(config: RunConfig, value: float, bitops: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": config.name,
        "seed": config.seed,
        "metric": "accuracy",
        "final": {"accuracy": value, "loss": 0.5},
        "best": None,
        "swa": None,
        "eval_precision": "w8a8",
        "cost": {"convention": "exact", "bitops": bitops},
        "steps": STEPS,
        "seconds": 2.5,
        "kernels": {"fc1": "simulate", "fc2": "simulate"},
        "weights_sha256": "0123456789abcdef" * 4,
        "range_test": None,
        **changes,
    }


def write_run(run: StudyRun, result: dict[str, Any] | None) -> Path:
    return write_folder(Path(run.config.output) / run.config.run_name, run.config, result)


def write_folder(folder: Path, config: RunConfig, result: dict[str, Any] | None) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    environment = {
        "torch": "9.9", "processor": f"CPU {SCRIPT}",
        "command": ["bitcycle", "train"], "config": to_dict(config),
    }  # fmt: skip
    (folder / "env.json").write_text(json.dumps(environment), encoding="utf-8")
    lines = []
    for step in range(4, STEPS + 1, 4):
        bits = {"weight": 3 + step % 5, "act": 3, "error": 8, "grad": 8}
        loss = 2.0 / step + 0.01 * config.seed
        lines.append({"step": step, "kind": "train", "loss": loss, "bits": bits})
        value = 50.0 + step + config.seed
        lines.append({"step": step, "kind": "eval", "split": "test", "accuracy": value})
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + '{"step": 44, "ki', encoding="utf-8")
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


def range_test() -> RangeTest:
    """2 bits learn nothing, 3 bits do."""
    settings = RangeTestConfig(threshold=0.2, window=2)
    return RangeTest(
        settings=settings.complete(high=3, steps_per_precision=6),
        runs=(
            PrecisionRun(0, 2, (0.1,) * 6),
            PrecisionRun(0, 3, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)),
        ),
        name="accuracy",
        higher_is_better=True,
    )


def landscape(label: str = "bowl") -> Landscape:
    """alpha^2 + 2 beta^2, infinite in one corner."""
    places = (-1.0, -0.5, 0.0, 0.5, 1.0)
    losses = [[a * a + 2 * b * b for b in places] for a in places]
    losses[0][0] = float("inf")
    return Landscape(
        alphas=places,
        losses=tuple(map(tuple, losses)),
        label=label,
        precision="w8a8",
        settings={},
    )


def made_up_cost(num_layers: int = 2) -> Cost:
    each = [
        LayerCost(name=f"stage{i // 2}.fc{i}", kind="linear", output=10, grad_input=20 * i,
                  grad_weight=30, traffic=1)
        for i in range(num_layers)
    ]  # fmt: skip
    return Cost(
        convention="exact", layers=tuple(each), baseline_layers=tuple(each), baseline="itself",
        num_steps=40, num_samples=40, uncounted=(),
    )  # fmt: skip


def demo_speed(kernel: str = "native", instruction_set: str | None = "avx2") -> BenchResult:
    """Made-up times: 4 and 5 ms in the mean of the cycle, against 8 ms in float32."""
    layers = {"conv": (kernel, "made up"), "fc": (kernel, "made up")}
    times = {
        ("float32", ""): (0.008, {}),
        ("auto", "w8a8e8"): (0.004, layers),
        ("auto", "4-8/8"): (0.005, layers),
    }
    rows = [
        StepTime(workload=WORKLOAD, kernel=name, bits=bits, seconds=(seconds, seconds), base=0.008,
                 layers=own)
        for (name, bits), (seconds, own) in times.items()
    ]  # fmt: skip
    processor = Processor(
        name="a processor", capability="AVX2", has_vnni=False, has_bf16=False, has_amx=False,
        instruction_set=instruction_set, num_threads=1, torch_version="9.9",
    )  # fmt: skip
    return BenchResult(
        processor=processor, sizes={WORKLOAD: "batch of 64"}, rows=tuple(rows), repeats=2
    )


def demo_result(speed: BenchResult | None = None) -> DemoResult:
    """The demo's methods with made-up accuracies and times."""
    precisions = {
        "float32": (PrecisionConfig(), 3200.0),
        "static 8/8": (PrecisionConfig(forward=8, backward=8), 200.0),
        "CPT 4-8/8": (PrecisionConfig(forward="CR:4-8:4", backward=8), 100.0),
    }
    entries = [
        (method(label, changes={"precision": precision}), {0: 98.1, 1: 98.9, 2: 99.4}, cost)
        for label, (precision, cost) in precisions.items()
    ]
    return DemoResult(study_result(entries, baseline="float32"), speed or demo_speed())


class Elements(HTMLParser):
    """Every element of a page as a browser sees it: (name, attributes), and the texts outside."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if not self.found or self.found[-1][0] not in ("script", "style"):
            self.texts.append(data)

    def names(self) -> list[str]:
        return [name for name, _ in self.found]

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))
