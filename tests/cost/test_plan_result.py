"""Plans as tables and JSON."""

from __future__ import annotations

import json

import bitcycle as bc
from bitcycle.cost import Plan, plan
from tests import toys


def make_plan(saving: float = 0.35, **options: object) -> Plan:
    model = bc.quantize_model(toys.linears(4, 8, 8))
    given = {"low": 3, "high": 8, "total_steps": 64_000, **options}
    inputs = toys.randn(1, 4).requires_grad_()  # so that every layer has all three products
    return plan(model, inputs, saving=saving, **given)  # type: ignore[arg-type]


def test_the_table_fits_100_columns_and_says_what_it_compares_with() -> None:
    text = str(make_plan())
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    assert "of 280 schedules between 3 and 8 bits, errors at 8, cost at most" in words
    assert "35.0% less than static 8/8" in words
    assert "over 64,000 steps of 1 sample, convention 'exact'" in words


def test_the_widest_table_fits_too() -> None:
    options = {"low": 10, "high": 16, "backward": "CR:10-16:32", "convention": "followup"}
    text = make_plan(saving=0.2, **options).text(limit=None)
    assert "delay@0.375(CR:10-16:8)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_numbers_of_cycles_that_cost_the_same_share_a_line() -> None:
    lines = make_plan().text(limit=None).splitlines()
    [line] = [line for line in lines if line.startswith("RR:3-8")]
    assert line.split()[:4] == ["RR:3-8:8", "2,", "32", "60.1%"]  # 0.399 of static 8/8


def test_every_row_is_behind_exactly_one_line_and_lines_keep_the_order() -> None:
    found = make_plan(saving=0.0, total_steps=240)  # short: the cost depends on the cycles
    lines = found.lines()
    assert sum(1 + len(others) for _, others in lines) == len(found.rows)
    costs = [row.bitops for row, _ in lines]
    assert costs == sorted(costs, reverse=True)
    by_text = {row.forward: row for row in found.rows}
    for row, others in lines:
        for cycles in others:
            head, _, end = row.forward.rpartition(":")
            other = by_text[f"{head}:{cycles}{')' if end.endswith(')') else ''}"]
            assert abs(other.saving - row.saving) <= 0.001
            assert (other.last, other.findings) == (row.last, row.findings)


def test_an_end_below_the_top_is_shown() -> None:
    text = make_plan(saving=0.3, cycles=[8], low=4).text(limit=None)
    [line] = [line for line in text.splitlines() if line.startswith("triangle:4-8")]
    assert "at 4" in line
    [line] = [line for line in text.splitlines() if line.startswith("LT:4-8")]
    assert "top" in line


def test_findings_are_numbered_where_they_are_used_and_written_once() -> None:
    text = make_plan(cycles=[8]).text(limit=None)
    [line] = [line for line in text.splitlines() if line.startswith("CR:3-8")]
    number = line.split()[-1]
    assert number.startswith("+")  # for
    words = " ".join(text.split())
    assert f"{number[1:]} CR at 3-8/8, 32 cycles, against static 8/8: ResNet-74 93.23" in words
    assert words.count("[CPT Table 1]") == 1


def test_a_limit_cuts_lines_and_the_findings_that_only_they_used() -> None:
    found = make_plan()
    text = found.text(limit=1)
    hidden = len(found.lines()) - 1
    assert f"and {hidden} more lines" in text
    assert text.count("[CPT") == len(found.lines()[0][0].findings)
    assert "more lines" not in found.text(limit=None)


def test_json_carries_every_row_and_only_json_types() -> None:
    found = make_plan()
    data = json.loads(json.dumps(found.to_dict()))
    assert data == found.to_dict()
    assert [row["forward"] for row in data["rows"]] == [row.forward for row in found.rows]
    assert data["num_rows"] == len(found.rows)
    assert data["rows"][0]["bitops"] <= data["budget"] < data["upper_bound"]
    few = found.to_dict(limit=2)
    assert (len(few["rows"]), few["num_rows"]) == (2, len(found.rows))


def test_what_was_not_counted_is_listed() -> None:
    assert "not counted" not in str(make_plan())
    found = make_plan()
    object.__setattr__(found, "uncounted", ("odd (Odd): no counter",))
    assert str(found).endswith("not counted:\n  odd (Odd): no counter")


def test_the_upper_bound_has_the_errors_at_their_top() -> None:
    found = make_plan(backward="CR:6-10:8")
    assert found.bound_name == "static 8/10"
    words = " ".join(str(found).split())
    assert "errors at CR:6-10:8" in words
    assert "35.0% less than static 8/10" in words
    assert "[CPT Table 8]" in words


def test_an_absolute_budget_above_the_upper_bound_is_not_called_a_saving() -> None:
    model = bc.quantize_model(toys.linears(4, 8))
    found = plan(model, toys.randn(1, 4), low=3, high=8, total_steps=100, bitops=1e18)
    assert "more than static 8/8" in " ".join(str(found).split())
