"""The demo: what it trains, times, sums up and says."""

from dataclasses import replace

import pytest
import torch

import bitcycle_lab.study.demo as demo
from bitcycle_lab.bench.steps import CycleBits
from bitcycle_lab.study.demo import WORKLOAD, DemoResult, run_demo, time_methods
from bitcycle_lab.study.engines.local import LocalEngine
from bitcycle_lab.study.results import open_study
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.tasks import ModelConfig
from bitcycle_lab.train import EvalConfig, SwaConfig, TrackingConfig
from tests.bitcycle_lab.report.made_up import demo_result, demo_speed
from tests.bitcycle_lab.study.small_studies import Here

METHODS = ["float32", "static 8/8", "CPT 4-8/8"]


def short_study(name):
    """The demo's own study with a narrow network, few steps, and cycles that fit into them."""
    study = find_study(name)
    return replace(study, methods=tuple(map(shorten, study.methods)))


def shorten(method):
    precision = method.config.precision
    if isinstance(precision.forward, str) and precision.forward.startswith("CR"):
        precision = replace(precision, forward="CR:4-8:1")
    config = replace(
        method.config,
        model=ModelConfig(name="digits_resnet", options={"width": 4}),
        steps=8,
        precision=precision,
        eval=EvalConfig(every=0),
        tracking=TrackingConfig(log_every=8, tensorboard=False),
    )
    return replace(method, config=config)


def make_short(patch):
    """Take the short study, train in this process, time each step twice."""
    patch.setattr(demo, "find_study", short_study)
    patch.setattr(demo, "make_engine", lambda name, num_jobs: Here())
    patch.setattr(demo, "time_methods", lambda study: time_methods(study, repeats=2))


@pytest.fixture
def is_short(monkeypatch):
    make_short(monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder, result and lines of a short demo with one seed."""
    output, said = tmp_path_factory.mktemp("demo"), []
    with pytest.MonkeyPatch.context() as patch:
        make_short(patch)
        result = run_demo(output, num_seeds=1, say=said.append)
    return output, result, said


def test_it_compares_methods_that_differ_in_nothing_but_bits():
    study = find_study("demo")
    assert (study.seeds, study.baseline) == ((0, 1, 2), "float32")
    configs = {method.label: method.config for method in study.methods}
    first = next(iter(configs.values()))
    plain = [replace(c, name="x", precision=first.precision) for c in configs.values()]
    assert all(config == plain[0] for config in plain)
    assert first.threads == 1  # the same results with any number of jobs
    texts = {label: config.precision.schedule_texts() for label, config in configs.items()}
    assert {label: (str(t["forward"]), str(t["backward"])) for label, t in texts.items()} == {
        "float32": ("fp32", "fp32"),
        "static 8/8": ("8", "8"),
        "CPT 4-8/8": ("CR:4-8:4", "8"),
    }


def test_every_method_has_a_row_with_its_cost(finished):
    _, result, _ = finished
    rows = {row.label: row for row in result.methods}
    assert list(rows) == METHODS
    assert rows["float32"].relative_cost == 1.0
    # (8 / 32)^2, and the skipped last layer
    assert 1 / 16 <= rows["static 8/8"].relative_cost < 1 / 14
    assert rows["CPT 4-8/8"].relative_cost < rows["static 8/8"].relative_cost


def test_the_time_of_every_method_is_measured_in_turn_on_the_threads_of_its_runs(finished):
    _, result, _ = finished
    assert result.speed.processor.num_threads == 1
    static, cycle = (result.time_of(label) for label in METHODS[1:])
    for time in (result.time_of("float32"), static, cycle):
        assert len(time.seconds) == 2
        assert time.base == min(result.time_of("float32").seconds)
    shares = CycleBits(4, 8, 8).shares()
    assert {int(width) for width in cycle.by_width} == set(shares)
    mean = sum(shares[int(width)] * seconds for width, seconds in cycle.by_width.items())
    assert min(cycle.seconds) == pytest.approx(mean)


def test_timed_layers_and_their_kernels_are_those_of_the_runs(finished):
    _, result, _ = finished
    for method in result.study.methods:
        [run] = method.results.values()
        timed = result.time_of(method.method.label).layers
        assert {name: kernel for name, (kernel, _) in timed.items()} == run.kernels


def test_timing_leaves_threads_and_determinism_as_they_were(is_short):
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(2)
    try:
        time_methods(short_study("demo"), repeats=1)
        assert torch.get_num_threads() == 2
        assert torch.are_deterministic_algorithms_enabled() == before[1]
    finally:
        torch.set_num_threads(before[0])


def test_the_table_has_a_line_per_method_with_time_and_kernel():
    text = str(demo_result())
    _, _, *lines = text.splitlines()
    assert [line.split("±")[1].split() for line in lines[:3]] == [
        ["0.66", "3", "1.000", "1.00", "8.0", "torch"],
        ["0.66", "3", "0.062", "0.50", "4.0", "native", "avx2"],
        ["0.66", "3", "0.031", "0.62", "5.0", "native", "avx2"],
    ]
    assert str(demo_speed().processor) in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_table_of_one_seed_has_no_deviation(finished):
    _, result, _ = finished
    table = str(result).partition("\n\n")[0]
    assert "±" not in table
    assert len(table.splitlines()) == 2 + 3


def test_simulated_products_are_named_with_the_reason():
    result = demo_result(demo_speed("simulate", None))
    assert result.kernel_of("CPT 4-8/8") == "simulate"
    assert "made up" in str(result)


def test_a_busy_machine_is_named():
    quiet = demo_speed()
    slow = [(fastest := min(row.seconds), *[2 * fastest] * 3) for row in quiet.rows]
    rows = tuple(replace(row, seconds=own) for row, own in zip(quiet.rows, slow, strict=True))
    assert "busy" not in demo_result(quiet).conditions
    assert "2.0" in demo_result(replace(quiet, rows=rows)).conditions


def test_progress_is_said_run_by_run(finished):
    _, _, said = finished
    assert said[0] == "demo: 3 runs: 3 to start; 1 at a time"
    ends = [line for line in said if line.startswith("[") and "at work" not in line]
    assert [line[:5] for line in ends] == ["[1/3]", "[2/3]", "[3/3]"]


def test_a_second_call_trains_nothing_says_so_and_measures_again(finished, is_short, monkeypatch):
    output, result, _ = finished
    runs = list(output.glob("digits-*/*"))
    before = {path: path.stat().st_mtime_ns for path in runs}
    assert runs
    monkeypatch.setattr(LocalEngine, "start", None)  # no process is started
    said = []
    again = run_demo(output, num_seeds=1, say=said.append)
    assert again.study == result.study
    assert again.time_of("float32").seconds != result.time_of("float32").seconds
    assert {path: path.stat().st_mtime_ns for path in runs} == before
    assert "all 3 runs" in said[0]


def test_it_is_a_study_like_others(finished, is_short):
    output, result, _ = finished
    assert isinstance(result, DemoResult)
    assert result.study.count("done") == 3
    assert list(result.speed.sizes) == [WORKLOAD]
    assert open_study("demo", output).seeds == (0,)


def test_a_run_that_crashes_is_an_error_with_its_message(tmp_path, is_short, monkeypatch):
    def broken(name):
        study = short_study(name)
        swa = SwaConfig(start=100)
        methods = [replace(m, config=replace(m.config, swa=swa)) for m in study.methods]
        return replace(study, methods=tuple(methods))

    monkeypatch.setattr(demo, "find_study", broken)
    with pytest.raises(ChildProcessError, match="float32 seed 0: ValueError: swa.start") as caught:
        run_demo(tmp_path, num_seeds=1, say=lambda line: None)
    assert str(caught.value).endswith("3 runs failed; the same command tries again")


@pytest.mark.parametrize(("options"), [{"num_seeds": 0}, {"num_jobs": 0}])
def test_no_seeds_or_no_jobs_are_an_error(options, tmp_path):
    with pytest.raises(ValueError, match="must be at least 1"):
        run_demo(tmp_path, **options)
