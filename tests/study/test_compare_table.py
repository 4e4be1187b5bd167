"""A comparison as tables and as data."""

import json

from bitcycle.study.compare import compare_runs
from bitcycle.study.compare_table import comparison_json, comparison_tables
from tests.study.test_compare import written


def three(tmp_path):
    folders = [
        written(tmp_path, 8, 0, 90.0, 200.0),
        written(tmp_path, 8, 1, 92.0, 200.0),
        written(tmp_path, "CR:3-8:8", 0, 91.0, best=93.0),
        written(tmp_path, 3, 0, None),
    ]
    return compare_runs(folders)


def test_the_tables_show_results_differences_and_settings(tmp_path):
    runs, differences, settings = comparison_tables(three(tmp_path))
    assert runs.title == "Runs: accuracy, %"
    assert runs.headings == (
        "run", "seeds", "steps", "final", "best", "at", "cost", "time", "state",
    )  # fmt: skip
    assert runs.rows == (
        ("run-8", "0, 1", "240", "91.0 ± 1.4", "-", "FW8/BW8", "1.00", "1.5 s", "-"),
        ("run-CR-3-8-8", "0", "240", "91.00", "93.00", "FW8/BW8", "0.500", "1.5 s", "-"),
        ("run-3", "0", "120 of 240", "-", "-", "-", "0.250", "1.2 s", "not finished"),
    )
    assert "best: those with the best validation metric" in runs.caption
    assert differences.rows == (("run-CR-3-8-8", "+1.00", "1", "-"),)
    assert settings.headings == ("setting", "run-8", "run-CR-3-8-8", "run-3")
    assert settings.rows == (("precision.forward", "8", "CR:3-8:8", "3"),)


def test_one_configuration_has_neither_differences_nor_settings(tmp_path):
    alone = compare_runs([written(tmp_path, 8, 0, 90.0), written(tmp_path, 8, 1, None)])
    [runs] = comparison_tables(alone)
    assert runs.rows[0][-1] == "1 of 2 not finished"
    assert "validation" not in runs.caption
    assert runs.rows[0][2] == "120 to 240 of 240"


def test_json_is_unrounded_and_plain(tmp_path):
    data = json.loads(json.dumps(comparison_json(three(tmp_path))))
    static, cpt, cut = data["runs"]
    assert static["values"] == [90.0, 92.0]
    assert static["final"]["std"] == 2**0.5
    assert (cpt["best"]["mean"], cpt["difference"]["mean"]) == (93.0, 1.0)
    assert (cut["values"], cut["final"], cut["state"]) == ([None], None, "not finished")
    assert data["differing"] == {"precision.forward": ["8", "CR:3-8:8", "3"]}
