"""Colours and markers of methods."""

from bitcycle.report.study_look import COLOURS, MARKERS, Look
from bitcycle.study.summary import summarize
from tests.study.made_up import method, study_result


def rows():
    entries = [
        (method("static", 8), {0: 90.0}, 200.0),
        (method("CPT", "CR:3-8:8"), {0: 93.0}, 100.0),
    ]
    return summarize(study_result(entries, baseline="static"))[0].rows


def test_a_label_has_one_look_everywhere():
    static, cpt = rows()
    look = Look.of(["static", "CPT", "static"])
    assert look.labels == ("static", "CPT")
    assert (look.colour(static), look.colour(cpt)) == COLOURS[:2]
    assert (look.marker(static), look.marker(cpt)) == MARKERS[:2]


def test_too_many_methods_share_two_looks_and_the_front_stands_out():
    static, cpt = rows()
    many = Look.of(map(str, range(len(COLOURS) + 1)))
    assert many.labels == ()
    assert (many.marker(static), many.marker(cpt)) == ("o", "D")
    assert many.colour(static) != many.colour(cpt)
