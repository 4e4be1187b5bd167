"""The unrounded numbers."""

import csv

from bitcycle.study.table_csv import to_csv
from tests.study.made_up import method, study_result


def test_one_line_per_method_with_unrounded_numbers():
    result = study_result(
        [
            (method("static, 8/8", 8, published={"accuracy": 92.57, "cost": 267.0}),
             {0: 90.0, 1: 91.0, 2: 92.5}, 2e12),
            (method("CPT", "CR:3-8:8", place=("row", "column")), {0: 91.1, 1: None}, 1e12),
            (method("later", 4), {}, 1.0),
        ],
        baseline="static, 8/8",
    )  # fmt: skip
    base, cpt, later = csv.DictReader(to_csv(result).splitlines())
    assert (base["method"], base["n"], base["seeds"]) == ("static, 8/8", "3", "0 1 2")
    assert float(base["mean"]) == (90.0 + 91.0 + 92.5) / 3
    assert (base["published"], base["published_gbitops"]) == ("92.57", "267.0")
    assert (base["difference"], base["relative_cost"]) == ("", "1.0")
    assert (cpt["row"], cpt["column"], cpt["std"], cpt["low"]) == ("row", "column", "", "")
    assert float(cpt["difference"]) == 91.1 - 90.0
    assert (cpt["pairs"], cpt["p"], cpt["failed"], cpt["missing"]) == ("1", "", "1", "1")
    assert (cpt["is_on_front"], cpt["eval_precision"], cpt["steps"]) == ("True", "FW8/BW8", "240")
    assert (later["mean"], later["n"], later["bitops"], later["missing"]) == ("", "0", "", "3")
