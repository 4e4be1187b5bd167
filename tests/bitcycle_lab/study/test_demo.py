"""The demo: what it trains, sums up and says."""

from dataclasses import replace

import pytest

import bitcycle_lab.study.demo as demo
from bitcycle_lab.study.demo import DemoResult, run_demo
from bitcycle_lab.study.engines.local import LocalEngine
from bitcycle_lab.study.results import open_study
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.train import EvalConfig, SwaConfig, TrackingConfig
from tests.bitcycle_lab.study.made_up import kernel_study
from tests.bitcycle_lab.study.small_studies import Here

METHODS = ["float32", "static 8/8", "CPT 3-8/8", "static 3/8"]
BASELINE = "static 8/8"


def short_study(name):
    """The demo's own study with few steps, and cycles that fit into them."""
    study = find_study(name)
    return replace(study, methods=tuple(map(shorten, study.methods)))


def shorten(method):
    precision = method.config.precision
    if isinstance(precision.forward, str) and precision.forward.startswith("CR"):
        precision = replace(precision, forward="CR:3-8:1")
    config = replace(
        method.config,
        steps=8,
        precision=precision,
        eval=EvalConfig(every=0),
        tracking=TrackingConfig(log_every=8, tensorboard=False),
    )
    return replace(method, config=config)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder, result and lines of a short demo with one seed."""
    output, said = tmp_path_factory.mktemp("demo"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "find_study", short_study)
        patch.setattr(demo, "make_engine", lambda name, num_jobs: Here())
        result = run_demo(output, num_seeds=1, say=said.append)
    return output, result, said


def test_it_compares_four_methods_that_differ_in_nothing_but_bits():
    study = find_study("demo")
    assert (study.seeds, study.baseline) == ((0, 1, 2), BASELINE)
    configs = {method.label: method.config for method in study.methods}
    first = next(iter(configs.values()))
    plain = [replace(c, name="x", precision=first.precision) for c in configs.values()]
    assert all(config == plain[0] for config in plain)
    assert first.threads == 1  # the same results with any number of jobs
    texts = {label: config.precision.schedule_texts() for label, config in configs.items()}
    assert {label: (str(t["forward"]), str(t["backward"])) for label, t in texts.items()} == {
        "float32": ("fp32", "fp32"),
        "static 8/8": ("8", "8"),
        "CPT 3-8/8": ("CR:3-8:8", "8"),
        "static 3/8": ("3", "8"),
    }


def test_every_method_has_a_row_with_its_cost(finished):
    _, result, _ = finished
    rows = {row.label: row for row in result.methods}
    assert list(rows) == METHODS
    assert rows[BASELINE].relative_cost == 1.0
    costs = [rows[m].relative_cost for m in ("static 3/8", "CPT 3-8/8", BASELINE, "float32")]
    assert costs == sorted(costs)
    assert 14 < rows["float32"].relative_cost <= 16  # (32 / 8)^2, less the skipped last layer


def test_the_table_has_a_line_per_method_and_says_what_it_means(finished):
    _, result, _ = finished
    text = str(result)
    header, _, *lines = text.splitlines()
    assert header.split("  ")[0] == "bits"
    for row, line in zip(result.methods, lines, strict=False):
        assert line.startswith(row.label)
        assert f" {row.summary.mean:.2f} " in line
        assert f"{row.relative_cost:.3f}" in line
        assert row.difference is None or f"{row.difference.mean:+.2f}" in line
    assert "±" not in text  # one seed has no deviation
    assert "of 1 seed on 360 test images" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("kernel", "line"),
    [
        (("simulate", None), "with the kernel simulate: low precision in float32 takes longer"),
        (("native", "avx512_vnni"), "with the kernel native avx512_vnni, "),
        (("native simulate", "avx2"), "with the kernels native avx2 and simulate, "),
    ],
)
def test_the_table_names_the_kernels_that_ran(kernel, line):
    names = {name: [kernel] * 3 for name in METHODS if name != "float32"}
    made = kernel_study({"float32": [("", kernel[1])] * 3, **names}, baseline=BASELINE)
    last = str(DemoResult(made)).splitlines()[-1]
    assert last.startswith(f"time      {line}")
    assert len(last) <= 100


def test_progress_is_said_run_by_run(finished):
    _, _, said = finished
    assert said[0].endswith("4 methods x 1 seed")
    assert said[1] == "demo: 4 runs: 4 to start; 1 at a time"
    ends = [line for line in said[2:] if line.startswith("[") and "at work" not in line]
    assert [line[:5] for line in ends] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]


def test_a_second_call_trains_nothing_and_says_the_same(finished, monkeypatch):
    output, result, _ = finished
    runs = list(output.glob("digits-*/*"))
    before = {path: path.stat().st_mtime_ns for path in runs}
    monkeypatch.setattr(demo, "find_study", short_study)
    monkeypatch.setattr(LocalEngine, "start", None)  # no process is started
    assert run_demo(output, num_seeds=1, say=lambda line: None) == result
    assert {path: path.stat().st_mtime_ns for path in runs} == before


def test_it_is_a_study_like_others(finished, monkeypatch):
    output, result, _ = finished
    assert result.study.count("done") == 4
    monkeypatch.setattr(demo, "find_study", short_study)
    assert open_study("demo", output).seeds == (0,)


def test_a_run_that_crashes_is_an_error_with_its_message(tmp_path, monkeypatch):
    def broken(name):
        study = short_study(name)
        swa = SwaConfig(start=100)
        methods = [replace(m, config=replace(m.config, swa=swa)) for m in study.methods]
        return replace(study, methods=tuple(methods))

    monkeypatch.setattr(demo, "find_study", broken)
    monkeypatch.setattr(demo, "make_engine", lambda name, num_jobs: Here())
    with pytest.raises(ChildProcessError, match="float32 seed 0: ValueError: swa.start") as caught:
        run_demo(tmp_path, num_seeds=1, say=lambda line: None)
    assert str(caught.value).endswith("4 runs failed; the same command tries again")


@pytest.mark.parametrize(("options"), [{"num_seeds": 0}, {"num_jobs": 0}])
def test_no_seeds_or_no_jobs_are_an_error(options, tmp_path):
    with pytest.raises(ValueError, match="must be at least 1"):
        run_demo(tmp_path, **options)
