"""Methods with the logs of their runs."""

import json
from dataclasses import replace

import pytest

from bitcycle.schedules import parse_schedule
from bitcycle_lab.report.runs import method_logs, read_object
from bitcycle_lab.train.config import PrecisionConfig

from .made_up import STEPS

PLATEAU = "plateau:3-8:window=40"


def with_precision(made, **precision):
    method = made.methods[1]
    changed = replace(method.method.config, precision=PrecisionConfig(**precision))
    one = replace(method, method=replace(method.method, config=changed))
    return method_logs(replace(made, methods=(one,)))[0]


# -- logs -----------------------------------------------------------------------------------------


def test_complete_lines_with_a_step_are_read(made):
    run = made.methods[0].runs[0]
    assert run.metrics[-1]["step"] == STEPS
    log = run.directory / "metrics.jsonl"
    log.write_text('{"step": "x"}\n[]\n3\n{"step": 5}\n{"step": 9, "ki')
    assert replace(run).metrics == [{"step": 5}]


def test_a_run_that_has_not_begun_has_nothing_but_its_plan(made):
    later = method_logs(made)[3]
    assert later.started == ()
    assert later.num_steps == STEPS
    assert later.runs[0].metrics == []


def test_a_run_by_epochs_has_the_steps_of_its_result_or_log(made):
    run = method_logs(made)[0].runs[0]
    by_epochs = replace(run, config=replace(run.config, steps=None, epochs=2.0))
    assert by_epochs.num_steps == STEPS
    assert replace(by_epochs, result=None).num_steps == STEPS


def test_the_lower_bound_comes_from_the_range_test_of_the_run(made):
    method = made.methods[1]
    tested = replace(method.runs[0].result, range_test={"test": {"low": 4}})
    runs = (replace(method.runs[0], result=tested),)
    found = replace(made, methods=(replace(method, runs=runs),))
    assert method_logs(found)[0].found_low == 4
    assert method_logs(made)[1].found_low is None


def test_a_file_without_an_object_is_nothing(tmp_path):
    path = tmp_path / "x.json"
    assert read_object(path) is None
    for text in ("{", "[1]", "\udcff"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        assert read_object(path) is None
    path.write_text(json.dumps({"a": 1}))
    assert read_object(path) == {"a": 1}


# -- bits -----------------------------------------------------------------------------------------


def test_roles_with_one_schedule_stand_together_and_patterns_are_named(made):
    method = with_precision(made, forward="CR:3-8:4", backward=8, grad=None)
    assert method.schedules() == {"CR:3-8:4": ["weight", "act"], "8": ["error"]}  # sbm: no grad
    full = with_precision(made, forward="CR:3-8:4", backward=8, grad=None, quantizer="wageubn")
    assert full.schedules()["fp32"] == ["grad"]
    layered = with_precision(made, forward={"fc1": 4, "*": "CR:3-8:4"}, backward=8)
    assert layered.schedules()["4"] == ["weight of fc1", "act of fc1"]


def test_the_bits_are_those_of_the_schedule_at_every_step(made):
    found = method_logs(made)[1].weight_bits()
    values = [bits for start, end, bits in found for _ in range(start, end)]
    assert values == parse_schedule("CR:3-8:4").values(STEPS)


@pytest.mark.parametrize("forward", [PLATEAU, {"*": 3}])
def test_bits_that_adapt_or_differ_by_layer_come_from_the_log(made, forward):
    method = with_precision(made, forward=forward, backward=8)
    assert method.is_adaptive() == (forward == PLATEAU)
    # as made up: step 4 has 3 + 4 % 5 bits, which held since step 0
    assert method.weight_bits()[0] == (0, 4, 7)
    assert method.logged_bits("act") == [(0, STEPS, 3)]


def test_epochs_that_are_not_over_have_the_bits_of_the_log(made):
    method = method_logs(made)[1]
    by_epochs = replace(method.config, steps=None, epochs=9.0)
    runs = tuple(replace(run, config=by_epochs, result=None) for run in method.runs)
    changed = replace(method.method, config=by_epochs)
    unfinished = replace(method, method=changed, runs=runs)
    assert unfinished.weight_bits() == unfinished.logged_bits("weight")


def test_auto_without_a_range_test_has_no_bits(made):
    assert with_precision(made, forward="CR:auto-8:4", backward=8).weight_bits() == []


@pytest.mark.parametrize(("bits", "most"), [([3, 8], 8), ([4, 32], None), (None, None), (5, 5)])
def test_the_most_bits_count_where_layers_differ(made, bits, most):
    log = made.methods[0].runs[0].directory / "metrics.jsonl"
    log.write_text(json.dumps({"step": 4, "bits": {"weight": bits}}) + "\n")
    assert method_logs(made)[0].logged_bits("weight") == [(0, 4, most)]
