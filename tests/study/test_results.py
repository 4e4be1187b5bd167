"""A study with the folders of its runs."""

from pathlib import Path

import pytest

from bitcycle.study.results import add_failure, read_study
from bitcycle.study.runner import to_do
from tests.study.made_up import result_of, write_run
from tests.study.small_studies import tiny_study


@pytest.fixture
def study():
    return tiny_study(seeds=(0, 1))


def test_a_run_is_missing_started_failed_or_done(study, tmp_path):
    first, second, third, _ = study.runs(str(tmp_path))
    write_run(first.config, result_of(first, Path("."), 91.5, 1e6))
    write_run(second.config, None)
    add_failure(tmp_path, third.config.run_name, "ValueError: no")
    result = read_study(study, tmp_path)
    states = {s.run.config.run_name: s.state for row in result.methods for s in row.runs}
    assert list(states.values()) == ["done", "failed", "started", "missing"]
    assert [result.count(s) for s in ("done", "failed", "started", "missing")] == [1] * 4
    assert result.num_runs == 4
    assert result.methods[0].values == {0: 91.5}
    assert result.methods[0].bitops == 1e6
    assert result.methods[1].bitops is None
    assert result.methods[0].runs[1].error == "ValueError: no"


def test_a_result_counts_more_than_a_failure_that_was_noted(study, tmp_path):
    first, *_ = study.runs(str(tmp_path))
    write_run(first.config, result_of(first, Path("."), 91.5, 1e6))
    add_failure(tmp_path, first.config.run_name, "ValueError: no")
    state = read_study(study, tmp_path).methods[0].runs[0]
    assert (state.state, state.error) == ("done", None)


def test_a_damaged_result_is_a_failed_run_that_only_its_owner_can_try_again(study, tmp_path):
    first, *_ = study.runs(str(tmp_path))
    write_run(first.config, result_of(first, Path("."), 91.5, 1e6))
    file = tmp_path / first.config.run_name / "result.json"
    file.write_text(file.read_text(encoding="utf-8")[:50], encoding="utf-8")
    result = read_study(study, tmp_path)
    state = result.methods[0].runs[0]
    assert state.state == "failed"
    assert f"{file} is damaged" in state.error
    assert "delete it and resume" in state.error
    assert result.count("missing") == 3
    assert [s.state for s in to_do(result, retry_failed=True)] == ["missing"] * 3
    file.unlink()
    assert read_study(study, tmp_path).methods[0].runs[0].state == "started"
