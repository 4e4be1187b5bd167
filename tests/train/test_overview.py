"""Runs on disk at a glance, whatever state they are in."""

import pytest

from bitcycle.train import run
from bitcycle.train.overview import list_runs
from tests.train.small import Killed, folder_of, kill_before_step, small


def test_every_run_below_a_folder_has_a_row(tmp_path, monkeypatch):
    finished = small(tmp_path / "a" / "deep", steps=2)
    result = run(finished)
    broken = small(tmp_path / "b")
    with monkeypatch.context() as patch:
        kill_before_step(patch, 5)
        with pytest.raises(Killed):
            run(broken)
    assert list_runs(tmp_path) == [
        {
            "run": str(folder_of(finished)),
            "state": "finished",
            "step": "2",
            "result": f"accuracy {result.value:.2f} at w4a4",
        },
        {"run": str(folder_of(broken)), "state": "not finished", "step": "3", "result": "-"},
    ]


@pytest.mark.parametrize("content", ["{", "[]", '{"metric": "accuracy"}', "null"])
def test_a_damaged_result_is_said_to_be_one(tmp_path, content):
    config = small(tmp_path, steps=1)
    run(config)
    (folder_of(config) / "result.json").write_text(content)
    assert list_runs(tmp_path)[0]["state"] == "result.json is damaged"


def test_a_folder_without_runs_has_no_rows(tmp_path):
    assert list_runs(tmp_path) == []
    assert list_runs(tmp_path / "none") == []
