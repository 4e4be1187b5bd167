"""The demo: what it trains, sums up and says."""

from dataclasses import replace

import pytest

import bitcycle.study.demo as demo
from bitcycle.recipes import recipe
from bitcycle.study.demo import BASELINE, METHODS, demo_configs, run_demo
from bitcycle.train import EvalConfig, TrackingConfig


def short_recipe(name):
    """The demo's own recipe with few steps, and cycles that fit into them."""
    config = recipe(name)
    precision = config.precision
    if isinstance(precision.forward, str) and precision.forward.startswith("CR"):
        precision = replace(precision, forward="CR:3-8:1")
    return replace(
        config,
        steps=8,
        precision=precision,
        eval=EvalConfig(every=0),
        tracking=TrackingConfig(log_every=8, tensorboard=False),
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Folder, result and lines of a short demo with one seed."""
    output, said = tmp_path_factory.mktemp("demo"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "recipe", short_recipe)
        result = run_demo(output, num_seeds=1, say=said.append)
    return output, result, said


def test_it_compares_four_methods_that_differ_in_nothing_but_bits(tmp_path):
    configs = demo_configs(tmp_path, range(3))
    assert len(configs) == 12
    plain = [replace(c, name="x", seed=0, precision=configs[0][1].precision) for _, c in configs]
    assert all(config == plain[0] for config in plain)
    bits = {method: (c.precision.forward, c.precision.backward) for method, c in configs}
    assert {method: tuple(map(str, pair)) for method, pair in bits.items()} == {
        "float32": ("fp32", "fp32"),
        "static 8/8": ("8", "8"),
        "CPT 3-8/8": ("CR:3-8:8", "8"),
        "static 3/8": ("3", "8"),
    }


def test_every_method_has_a_row_with_its_cost(finished):
    _, result, _ = finished
    rows = {row.method: row for row in result.rows}
    assert list(rows) == list(METHODS)
    assert rows[BASELINE].relative_cost == 1.0
    costs = [rows[m].relative_cost for m in ("static 3/8", "CPT 3-8/8", BASELINE, "float32")]
    assert costs == sorted(costs)
    assert 14 < rows["float32"].relative_cost <= 16  # (32 / 8)^2, less the skipped last layer
    for row in result.rows:
        assert len(row.accuracies) == len(row.directories) == 1
        assert row.spread == 0.0
        assert row.seconds > 0


def test_a_row_knows_the_schedule_that_was_trained(finished):
    _, result, _ = finished
    assert {row.method: (row.forward, row.num_steps) for row in result.rows} == {
        "float32": ("fp32", 8),
        "static 8/8": ("8", 8),
        "CPT 3-8/8": ("CR:3-8:1", 8),
        "static 3/8": ("3", 8),
    }


def test_the_table_has_a_line_per_method_and_says_what_it_means(finished):
    _, result, _ = finished
    text = str(result)
    header, _, *lines = text.splitlines()
    assert header.split("  ")[0] == "forward/backward bits"
    for row, line in zip(result.rows, lines, strict=False):
        assert line.startswith(row.method)
        assert f"{row.mean:.2f} +- 0.00" in line
        assert f"{row.relative_cost:.3f}" in line
    assert "over 1 seed on 360 test images" in text
    assert "simulated in float32" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_comparison_is_of_cost_and_accuracy(finished):
    _, result, _ = finished
    rows = {row.method: row for row in result.rows}
    share = 100 * rows["CPT 3-8/8"].relative_cost
    gain = rows["CPT 3-8/8"].mean - rows[BASELINE].mean
    assert result.comparison() == (
        f"CPT 3-8/8 against static 8/8: {share:.0f} % of the training cost, "
        f"accuracy {gain:+.2f} points"
    )


def test_progress_is_said_run_by_run(finished):
    _, _, said = finished
    assert said[0].endswith("4 methods x 1 seed = 4 runs, 2 at a time")
    assert [line[:5] for line in said[1:]] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]


def test_a_second_call_trains_nothing_and_says_the_same(finished, monkeypatch):
    output, result, _ = finished
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    monkeypatch.setattr(demo, "recipe", short_recipe)
    monkeypatch.setattr(demo, "get_context", None)  # no process is started
    assert run_demo(output, num_seeds=1, say=lambda line: None) == result
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before


@pytest.mark.parametrize(("options"), [{"num_seeds": 0}, {"num_jobs": 0}])
def test_no_seeds_or_no_jobs_are_an_error(options, tmp_path):
    with pytest.raises(ValueError, match="must be at least 1"):
        run_demo(tmp_path, **options)
