"""What folders recorded."""

import json

from bitcycle.report.page.recorded import read_object, record

from .made_up import STEPS


def test_whole_lines_are_read_and_half_ones_are_not(made):
    run = record(made)[0].runs[0]
    assert [line["step"] for line in run.metrics][-1] == STEPS
    assert run.environment["torch"] == "9.9"


def test_lines_without_a_step_are_left_out(made):
    log = made.methods[0].runs[0].directory / "metrics.jsonl"
    log.write_text('{"step": "x"}\n[]\n3\n{"step": 5}\n')
    assert record(made)[0].runs[0].metrics == [{"step": 5}]


def test_a_run_that_has_not_begun_has_nothing_but_its_plan(made):
    later = record(made)[3]
    assert later.begun == ()
    assert later.num_steps == STEPS
    assert later.runs[0].metrics == []
    assert later.runs[0].environment == {}


def test_the_steps_of_a_run_by_epochs_are_those_of_its_result_or_log(made):
    from dataclasses import replace

    from bitcycle.report.page.recorded import Recorded

    state = made.methods[0].runs[0]
    by_epochs = replace(state.run, config=replace(state.run.config, steps=None, epochs=2.0))
    assert Recorded(replace(state, run=by_epochs)).num_steps == STEPS
    assert Recorded(replace(state, run=by_epochs, result=None)).num_steps == STEPS


def test_titles_have_the_group_only_where_there_are_several(made):
    assert record(made)[0].title == "static 8/8"


def test_the_lower_end_comes_from_the_runs_own_range_test(made):
    from dataclasses import replace

    method = made.methods[1]
    tested = replace(method.runs[0].result, range_test={"test": {"low": 4}})
    runs = (replace(method.runs[0], result=tested),)
    found = replace(made, methods=(replace(method, runs=runs),))
    assert record(found)[0].found_low == 4
    assert record(made)[1].found_low is None


def test_a_file_without_an_object_is_nothing(tmp_path):
    path = tmp_path / "x.json"
    assert read_object(path) is None
    for text in ("{", "[1]", "\udcff"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        assert read_object(path) is None
    path.write_text(json.dumps({"a": 1}))
    assert read_object(path) == {"a": 1}
