"""Where a study stands."""

from pathlib import Path

from bitcycle.study.attempt import run_folder
from bitcycle.study.failures import add_failure
from bitcycle.study.results import read_study
from bitcycle.study.status import failures_text, status_text
from tests.study.made_up import result_of, write_run
from tests.study.small_studies import tiny_study


def test_a_row_per_method_and_a_line_for_what_is_not_simply_done(tmp_path):
    study = tiny_study(seeds=(0, 1))
    done, failed, started, _ = study.runs(str(tmp_path))
    write_run(done.config, result_of(done, Path("."), 91.5, 1e6))
    add_failure(tmp_path, failed.config.run_name, "ValueError: no")
    bits = {"weight": 3, "error": 8}
    line = {"step": 2, "kind": "train", "accuracy": 50.0, "seconds": 6.0, "bits": bits}
    write_run(started.config, None, [line])
    result = read_study(study, tmp_path)
    header, _, first, second, _, *rest = status_text(result).splitlines()
    assert header.split() == ["method", "done", "started", "failed", "missing", "metric", "mean"]
    assert first.split() == ["8", "1", "1", "0", "0", "accuracy", "91.50"]
    assert second.split() == ["4", "0", "0", "1", "1", "accuracy", "-"]
    assert rest == [
        f"1 of 4 runs done, below {tmp_path}",
        "interrupted, goes on from its checkpoint: 8 seed 1: step 2/4  bits 3/8  accuracy 50.00",
        "failed: 4 seed 0: ValueError: no",
        "1 run failed; --retry-failed tries again",
    ]
    assert failures_text(result).splitlines() == rest[-2:]
    with run_folder(started.config).locked():
        assert "\nat work: 8 seed 1: step 2/4" in status_text(result)
