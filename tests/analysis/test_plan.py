"""Plans for models and recipes by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitcycle.analysis.plan import plan_by_name, read_bounds
from bitcycle.analysis.training_spec import find_spec
from bitcycle.cost import training_cost
from bitcycle.recipes import recipe
from bitcycle.train.config_file import to_yaml


def test_what_is_given_comes_before_what_the_recipe_says() -> None:
    found = plan_by_name(
        "digits-cpt-3-8-8", saving=0.2, low=4, high=6, backward="CR:6-8:4", total_steps=100,
        batch_size=10, cycles=[4],
    )  # fmt: skip
    assert (found.low, found.high, found.backward) == (4, 6, "CR:6-8:4")
    assert (found.total_steps, found.samples_per_step) == (100, 10)
    assert all(row.schedule.high <= 6 for row in found.rows)


def test_a_row_costs_what_the_recipe_costs_with_that_schedule() -> None:
    found = plan_by_name("digits-cpt-3-8-8", saving=0.0)
    spec = find_spec("digits-cpt-3-8-8", roles={})
    model = spec.build()
    cost = training_cost(
        model, spec.inputs(model, 1), forward="CR:3-8:8", backward=8, total_steps=240,
        samples_per_step=64,
    )  # fmt: skip
    [row] = [row for row in found.rows if row.forward == "CR:3-8:8"]
    assert row.bitops == cost.bitops
    assert row.saving == cost.saving


def test_a_static_recipe_brings_the_upper_bound_only() -> None:
    with pytest.raises(
        ValueError, match=r"bounds of digits-static-8-8 are not known: give low, or the"
    ):
        plan_by_name("digits-static-8-8", saving=0.2)
    assert plan_by_name("digits-static-8-8", saving=0.2, low=3).high == 8


def test_a_float_recipe_is_planned_as_if_it_were_converted() -> None:
    found = plan_by_name("digits-float32", saving=0.2, low=3, high=8, cycles=[8])
    assert found.backward == "8"
    assert len({row.bitops for row in found.rows}) > 10


def test_a_model_needs_bounds_and_has_the_papers_length() -> None:
    with pytest.raises(
        ValueError, match="bounds of resnet8 are not known: give low and high, or the file"
    ):
        plan_by_name("resnet8", saving=0.2)
    found = plan_by_name("resnet8", saving=0.2, low=3, high=8, options={"num_classes": 100})
    assert (found.total_steps, found.samples_per_step, found.backward) == (64_000, 128, "8")


def test_errors_that_differ_by_layer_must_be_given(tmp_path: Path) -> None:
    target = tmp_path / "run.yaml"
    text = to_yaml(recipe("digits-cpt-3-8-8"))
    assert "  backward: 8\n" in text
    target.write_text(text.replace("  backward: 8\n", "  backward: {'*': 8}\n"))
    with pytest.raises(ValueError, match="differ by layer: give backward"):
        plan_by_name(str(target), saving=0.3)
    assert plan_by_name(str(target), saving=0.3, backward="8").backward == "8"


def test_published_conventions_count_every_layer_at_the_scheduled_bits() -> None:
    found = plan_by_name(
        "cifar100-resnet74-cpt-3-8-8", saving=0.36, cycles=[32], convention="paper"
    )
    assert (found.low, found.high, found.backward) == (3, 8, "8")
    assert (found.total_steps, found.samples_per_step) == (64_000, 128)
    [row] = [row for row in found.rows if row.forward == "CR:3-8:32"]
    assert round(100 * row.saving, 2) == 36.67  # the paper's 3-8/8


def write(folder: Path, data: Any) -> Path:
    target = folder / "range-test.json"
    target.write_text(data if isinstance(data, str) else json.dumps(data))
    return target


def test_a_range_test_brings_bounds_that_given_ones_override(tmp_path: Path) -> None:
    file = write(tmp_path, {"low": 4, "high": 7, "curve": {}})
    assert read_bounds(file) == (4, 7)
    found = plan_by_name("digits-cpt-3-8-8", saving=0.1, range_test=file)
    assert (found.low, found.high) == (4, 7)
    found = plan_by_name("resnet8", saving=0.1, range_test=file, high=8)
    assert (found.low, found.high) == (4, 8)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"low": None, "high": None, "curve": {}}, "no bits passed .*; give low and high"),
        ("{", "is not JSON"),
        ("[]", "has no 'low' and 'high'"),
        ({"low": True, "high": "8"}, "has no 'low' and 'high'"),
    ],
)
def test_a_file_that_holds_no_bounds_is_an_error(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_bounds(write(tmp_path, data))
