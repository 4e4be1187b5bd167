"""What all studies say together."""

from bitcycle.study.publish.answers import compared
from bitcycle.study.publish.overview import does_not_hold, fronts, headline_text, overview_page
from tests.study.made_up import method, study_result
from tests.study.publish.made import ALIKE, BETTER, STATIC, WORSE, evidence_of, made


def study(name, cycled, **changes):
    return evidence_of(made(cycled, name=name, **changes))


def test_static_bits_that_cost_no_more_are_the_harder_test():
    entries = [
        (method("static 8/8", 8), STATIC, 100.0),
        (method("static 6/8", 6), STATIC, 50.0),
        (method("CPT 3-8/8", "CR:3-8:8"), WORSE, 60.0),
    ]
    text = overview_page([evidence_of(study_result(entries, name="a"))])
    assert "where a study has such: 0 better, 0 within noise, 1 worse, of 1." in text
    assert "CPT 3-8/8 against static 6/8, which costs no more: worse beyond noise, -1.00" in text


def test_what_speaks_against_the_claim_is_listed():
    assert list(does_not_hold(compared([study("a", BETTER)]))) == []
    (worse,) = does_not_hold(compared([study("a", WORSE)]))
    assert worse == (
        "a, CPT 3-8/8 against static 8/8: worse beyond noise, -1.00 (-1.25 to -0.75), n = 3, at "
        "60 % of the cost"
    )
    (dear,) = does_not_hold(compared([study("a", ALIKE, cost=120.0)]))
    assert dear == "a, CPT 3-8/8 against static 8/8: no lower cost, 120 % of the static run's"
    (untold,) = does_not_hold(compared([study("a", {0: 95.0})]))
    assert "cannot tell: one seed, so no interval" in untold


def test_names_of_studies_lead_to_their_pages():
    text = headline_text(compared([study("a-b", ALIKE)]), folder="results/")
    assert "| [a-b](results/a-b.md) | CPT 3-8/8 | static 8/8 |" in text


def test_the_front_of_every_study_has_its_n():
    assert list(fronts([study("a", BETTER)])) == [
        "a: CPT 3-8/8 (1 of 1 schedules with changing bits; n = 3)"
    ]


def test_the_page_answers_three_questions_also_when_there_is_nothing():
    for published in ([], [study("a", ALIKE)]):
        text = overview_page(published, [("Speed", "speed.md", "Slow.")])
        for heading in ("match or beat", "on the Pareto front?", "Where does it not hold?"):
            assert heading in text
        assert "- [Speed](speed.md): Slow." in text
    assert "In no comparison was the cyclic schedule worse beyond noise or dearer." in text
