"""Plans for models and recipes by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bitcycle.analysis.plan import plan_by_name, read_bounds
from bitcycle.analysis.training_spec import find_spec
from bitcycle.cost import Plan, training_cost
from bitcycle.recipes import recipe
from bitcycle.study.study import Method, StudyRun
from bitcycle.train.config_file import to_yaml
from tests.study.made_up import result_of, write_run


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


def test_a_recipe_of_formats_that_differ_by_layer_needs_a_ladder() -> None:
    for name, ladder in (
        ("wikitext2-transformer-nvfp4-heal", "nvfp4,bf16"),  # some layers are bf16
        ("wikitext2-transformer-mxfp8", "mxfp8,bf16"),  # static
        ("wikitext2-transformer-bf16", "8,bf16"),
    ):
        with pytest.raises(ValueError, match=rf"ladder of {name} .*\(--ladder {ladder}\)"):
            plan_by_name(name, saving=0.2)


def test_errors_that_differ_by_layer_must_be_given(tmp_path: Path) -> None:
    target = tmp_path / "run.yaml"
    text = to_yaml(recipe("digits-cpt-3-8-8"))
    assert "  backward: 8\n" in text
    target.write_text(text.replace("  backward: 8\n", "  backward: {'*': 8}\n"))
    with pytest.raises(ValueError, match="differ by layer: give backward"):
        plan_by_name(str(target), saving=0.3)
    assert plan_by_name(str(target), saving=0.3, backward="8").backward == "8"


def test_errors_without_a_default_are_asked_for_by_their_option() -> None:
    with pytest.raises(ValueError, match=r"^forward has 12 bits: .* or fp32 \(--backward\)$"):
        plan_by_name("resnet8", saving=0.1, low=3, high=12)


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


# -- own results ----------------------------------------------------------------------------------


def write_own(folder: Path, forward: int | str, bitops: float, *values: float, **more: Any) -> None:
    """Finished runs of the digits recipe with another forward schedule, seeds 0, 1, ..."""
    base = recipe("digits-cpt-3-8-8")
    for seed, value in enumerate(values):
        config = replace(
            base, name=f"run-{len(list(folder.iterdir()))}", output=str(folder), seed=seed,
            precision=replace(base.precision, forward=forward), **more,
        )  # fmt: skip
        run = StudyRun(method=Method(label="", config=config), config=config)
        write_run(config, result_of(run, folder, value, bitops))


def own_plan(folder: Path, **options: Any) -> Plan:
    return plan_by_name("digits-cpt-3-8-8", saving=0.3, cycles=[8], runs=folder, **options)


def test_own_runs_that_are_better_come_first_and_dominated_ones_last(tmp_path: Path) -> None:
    write_own(tmp_path, 8, 300.0, 95.0, 96.0, 97.0)
    write_own(tmp_path, "RR:4-8:8", 150.0, 96.0, 97.1, 97.9, threads=2)  # 1.0 1.1 0.9 better
    write_own(tmp_path, "LR:3-8:8", 200.0, 95.5, 96.5, 97.5)  # 0.5 better; RR:4-8 by 1.0
    found = own_plan(tmp_path)
    assert found.rows[0].forward == "RR:4-8:8"
    assert "; +1.00 points against static 8/8 (own runs, n = 3)" in found.recommended
    [behind] = [row for row in found.rows if row.forward == "LR:3-8:8"]
    assert behind.to_dict()["is_behind"]
    text = found.text(limit=None)
    assert "own results: 9 finished runs of this set-up with 3 forward schedules below" in text


@pytest.mark.slow
def test_own_runs_overrule_a_published_gain(tmp_path: Path) -> None:
    write_own(tmp_path, 8, 300.0, 95.0, 96.0, 97.0)
    write_own(tmp_path, "CR:3-8:8", 190.0, 94.0, 94.9, 96.1)  # 1.0 1.1 0.9 worse
    assert own_plan(tmp_path / "..").rows[0].forward != "CR:3-8:8"
    [row] = [row for row in own_plan(tmp_path).rows if row.forward == "CR:3-8:8"]
    assert row.finding is not None
    assert row.finding.text == (
        "CR:3-8:8 against static 8/8: -1.00 points (95 % interval -1.25 to -0.75, n = 3)"
    )
    assert plan_by_name("digits-cpt-3-8-8", saving=0.3, cycles=[8]).rows[0].forward == "CR:3-8:8"


def test_one_seed_or_another_set_up_changes_no_place(tmp_path: Path) -> None:
    write_own(tmp_path, 8, 300.0, 95.0)
    write_own(tmp_path, "RR:4-8:8", 150.0, 20.0)
    write_own(tmp_path, "LR:3-8:8", 200.0, 1.0, 2.0, 3.0, steps=77)
    found, usual = own_plan(tmp_path), plan_by_name("digits-cpt-3-8-8", saving=0.3, cycles=[8])
    assert [row.forward for row in found.rows] == [row.forward for row in usual.rows]
    assert "2 finished runs of this set-up" in found.notes[0]
    [row] = [row for row in found.rows if row.forward == "RR:4-8:8"]
    assert [finding.source for finding in row.findings] == ["own runs, n = 1"]


def test_without_runs_of_this_set_up_the_plan_says_so(tmp_path: Path) -> None:
    assert own_plan(tmp_path).notes == (
        f"own results: no finished run of this set-up below {tmp_path}",
    )
    write_own(tmp_path, "RR:4-8:8", 150.0, 96.0, 97.1)
    assert (
        own_plan(tmp_path)
        .notes[0]
        .endswith("; none at static 8/8, so only schedules that cost no more are compared")
    )


def test_a_folder_of_something_else_is_skipped_and_counted(tmp_path: Path) -> None:
    for name, content in (("foreign", "trainer: {epochs: 3}\n"), ("broken", "a: [\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(content)
        (tmp_path / name / "result.json").write_text("{}")
    skipped = "; skipped 2 folders whose files bitcycle cannot read"
    assert own_plan(tmp_path).notes[0].endswith(f"below {tmp_path}{skipped}")
    write_own(tmp_path, 8, 300.0, 95.0)
    [note] = own_plan(tmp_path).notes
    assert note.startswith("own results: 1 finished runs of this set-up")
    assert note.endswith(skipped)


def test_runs_need_a_recipe_to_be_compared_with(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="resnet8 is a model; runs are compared with a recipe"):
        plan_by_name("resnet8", low=3, high=8, saving=0.1, runs=tmp_path)
