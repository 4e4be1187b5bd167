"""Methods as rows."""

import pytest

from bitcycle.report.evidence.front import draw_front
from bitcycle.report.evidence.rows import is_crowded
from bitcycle.study.summary import summarize
from tests.study.made_up import method, study_result
from tests.study.publish.made import ALIKE, STATIC

pytest.importorskip("matplotlib")

LABELS = [f"lr {k}" for k in range(1, 9)]


def crowd():
    """Eight methods, every second one at half the cost or hardly more."""
    entries = [
        (method(label, 8), STATIC, 100.0) if k % 2 else (method(label, 4), ALIKE, 50.0 + 0.1 * k)
        for k, label in enumerate(LABELS)
    ]
    return study_result(entries, baseline="lr 2")


def test_many_methods_of_few_costs_are_rows_in_their_order():
    (axes,) = draw_front(crowd()).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == LABELS
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first is at the top
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["0.500", "1.00", "0.502", "1.00", "0.504", "1.00", "0.506", "1.00",
                     "cost, lr 2 = 1"]  # fmt: skip
    assert axes.get_xlabel() == "test accuracy, %"


def test_few_methods_or_many_costs_are_points():
    assert is_crowded(summarize(crowd()))
    few = [(method(str(k), k), STATIC, 1.0) for k in range(2, 9)]
    many = [(method(str(k), k), STATIC, float(k)) for k in range(2, 12)]
    assert not is_crowded(summarize(study_result(few)))
    assert not is_crowded(summarize(study_result(many)))
