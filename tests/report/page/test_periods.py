"""The metric against the varied number."""

from dataclasses import replace

import pytest

from bitcycle.report.page.periods import periods_card
from bitcycle.study.results import read_study
from bitcycle.study.summary import summarize

from .made_up import Elements, study, write_study


def test_methods_stand_at_their_number_with_the_baseline_as_a_line(output):
    first, *others = study().methods
    placed = [replace(method, at=at) for method, at in zip(others, (0.5, 0.25, 0.75), strict=True)]
    made = write_study(output, study(methods=(first, *placed), kind="critical-periods"))
    [figure] = Elements(periods_card(summarize(read_study(made, output))[0])).data
    means, base = figure["data"]
    assert (means["x"], means["y"]) == ([0.25, 0.5], [80, 93])
    assert means["error_y"]["array"] == [0, pytest.approx(0)]  # one seed; two equal ones
    assert base["y"] == [91, 91]


def test_other_studies_have_no_such_card(made):
    assert periods_card(summarize(made)[0]) is None
