"""What all studies say together."""

from bitcycle.study.base import STUDIES
from bitcycle.study.publish.comparisons import compared
from bitcycle.study.publish.overview import overview_page
from bitcycle.study.publish.overview_tables import (
    MOST,
    against,
    fronts_text,
    headline_text,
    link,
    short_headline_text,
    summary_text,
)
from bitcycle.study.publish.pairs import budget_pairs
from tests.study.made_up import method, study_result
from tests.study.publish.made import ALIKE, BETTER, STATIC, WORSE, evidence_of, made


def study(name, cycled, **changes):
    return evidence_of(made(cycled, name=name, **changes))


def reasons(*published):
    found = against(compared(published), compared(published, budget_pairs))
    return [(entry.study, entry.pair.static.label, why) for entry, why in found]


def test_static_bits_that_cost_no_more_are_the_harder_test():
    entries = [
        (method("static 8/8", 8), WORSE, 100.0),
        (method("static 6/8", 6), STATIC, 50.0),
        (method("CPT 3-8/8", "CR:3-8:8"), WORSE, 60.0),
    ]
    published = [evidence_of(study_result(entries, name="a"))]
    text = overview_page(published)
    assert "has such (83 % of its cost): 0 better, 0 within noise, 1 worse, of 1." in text
    why = "worse beyond noise than static bits that cost no more"
    assert ("a", "static 6/8", why) in reasons(*published)
    assert f"| -1.00 (-1.25 to -0.75) | 3 | 0.003 | 1.20 | {why} |" in text


def against_six(cycled, cost=60.0):
    """Reasons where static 6 bits cost 50 and the cycle `cost`, its static top 100."""
    entries = [
        (method("static 8/8", 8), WORSE, 100.0),
        (method("static 6/8", 6), STATIC, 50.0),
        (method("CPT 3-8/8", "CR:3-8:8"), cycled, cost),
    ]
    published = evidence_of(study_result(entries, name="a"))
    return [why for _, static, why in reasons(published) if static == "static 6/8"]


def test_where_static_bits_do_as_well_for_less_the_claim_does_not_hold():
    assert against_six(ALIKE) == ["dearer than static bits that do as well, within noise"]
    assert against_six(ALIKE, cost=50.0 * (1 + 1e-12)) == []  # as dear
    assert against_six(BETTER) == []
    assert against_six({0: 95.0}) == ["dearer than static bits; cannot tell: one seed"]


def test_what_speaks_against_the_claim_is_listed():
    assert reasons(study("a", BETTER)) == []
    assert reasons(study("a", WORSE)) == [("a", "static 8/8", "worse beyond noise")]
    assert reasons(study("a", WORSE, cost=120.0))[0] == (
        "a", "static 8/8", "worse beyond noise; no lower cost"
    )  # fmt: skip
    assert reasons(study("a", {0: 95.0})) == [("a", "static 8/8", "cannot tell: one seed")]


def test_shared_runs_are_listed_once():
    assert len(reasons(study("a", WORSE), study("b", WORSE))) == 1


def test_names_of_studies_lead_to_their_pages():
    entries = compared([study("a-b", ALIKE)])
    row = "| accuracy, % | CPT 3-8/8: "
    assert f"| [a-b](a-b.md) {row}" in headline_text(entries)
    assert f"| [a-b](results/a-b.md) {row}" in short_headline_text(entries, folder="results/")
    assert link("my study") == "[my study](my%20study.md)"


def test_the_headline_of_another_document_says_which_rows_it_has():
    entries = [(method("8", 8), STATIC, 100.0)]
    entries += [(method(f"N = {n}", f"CR:3-8:{n}"), ALIKE, 60.0) for n in range(1, 14)]

    def text(number):
        published = evidence_of(study_result(entries[: number + 1], name="a", baseline="8"))
        return short_headline_text(compared([published]), folder="results/")

    *_, last, _, said = text(12).splitlines()
    assert "| N = 12: " in last
    assert said.startswith("Every comparison of CPT's schedule with static bits at its top")
    *_, rule, row, _, said = text(13).splitlines()
    assert (rule[:5], "| N = 1: " in row) == ("| ---", True)
    assert said.endswith(
        "Of the 12 others in [results](results/README.md): 0 better, 12 within noise, 0 worse."
    )
    assert short_headline_text([], folder="") == ""


def test_all_small_studies_together_have_a_short_headline():
    published = []
    for name in STUDIES.names():
        study = STUDIES[name]()
        if study.scale == "small":
            entries = [(m, dict.fromkeys(study.seeds, 90.0), 1.0) for m in study.methods]
            settings = {key: getattr(study, key) for key in ("name", "seeds", "baseline", "kind")}
            published.append(evidence_of(study_result(entries, **settings)))
    text = short_headline_text(compared(published), folder="")
    assert (
        0 < len(text.splitlines()) - 4 <= MOST
    )  # headings, rule, and a sentence after an empty line


def test_all_comparisons_are_counted_by_study():
    published = [study("a", BETTER), study("b", {0: 95.0})]
    lines = summary_text(compared(published)).splitlines()
    assert lines[0] == "| study | n | cost | same top: better | same top: cannot tell |"
    assert lines[2:] == ["| [a](a.md) | 3 | 60 % | 1 | - |", "| [b](b.md) | 1 | 60 % | - | 1 |"]


def test_the_front_of_every_study_has_its_n():
    lines = fronts_text([study("a", BETTER)]).splitlines()
    assert lines[-1] == "| [a](a.md) | CPT 3-8/8 | 1 of 1 | 0 of 1 | 3 |"


def test_when_low_precision_harms_is_no_question_of_fronts():
    assert fronts_text([study("a", BETTER, kind="critical-periods")]) == ""


def test_schedules_without_static_bits_at_their_top_are_said():
    entries = [(method("CPT 3-6/8", "CR:3-6:8"), STATIC, 60.0), (method("8", 8), STATIC, 100.0)]
    text = overview_page([evidence_of(study_result(entries, name="a", baseline="8"))])
    assert "no study here has finished runs of static bits at their top: 1 of a." in text
    assert "No finished study compares cyclic with static bits" in text


def test_a_page_has_its_answer_where_the_tables_do_not():
    critical = study("late", WORSE, kind="critical-periods")
    lines = overview_page([critical, study("a", ALIKE)]).splitlines()
    (late,) = (line for line in lines if line.startswith("- [late]"))
    (other,) = (line for line in lines if line.startswith("- [a]"))
    assert "against static 8/8" in late
    assert other == "- [a](a.md): Numbers of no training. 6 of 6 runs."


def test_the_page_answers_three_questions_also_when_there_is_nothing():
    for published in ([], [study("a", ALIKE)]):
        text = overview_page(published, [("Speed", "speed.md", "Slow.")])
        for heading in ("match or beat", "on the Pareto front?", "Where does it not hold?"):
            assert heading in text
        assert "- [Speed](speed.md): Slow." in text
    assert "Looked at: 1 comparisons with static bits at the same top" in text
    assert "; 0 with the best static bits that cost no more" in text
    assert "None was found." in text
