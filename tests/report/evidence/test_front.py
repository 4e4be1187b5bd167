"""The picture of values against cost."""

import pytest

from bitcycle.report.evidence.front import colour_of, draw_front
from bitcycle.report.study_look import FRONT, PLAIN
from bitcycle.study.summary import summarize
from bitcycle.tasks import DataConfig, ModelConfig
from bitcycle.train.config import PrecisionConfig
from tests.study.made_up import method, study_result
from tests.study.publish.made import ALIKE, BETTER, STATIC, made

pytest.importorskip("matplotlib")


def test_every_method_is_named_and_the_front_is_a_line():
    entries = [
        (method("static 8/8", 8), STATIC, 100.0),
        (method("CPT 3-8/8", "CR:3-8:8"), BETTER, 60.0),
        (method("static 3/8", 3), {0: 80.0, 1: 81.0, 2: 80.0}, 30.0),
    ]
    (axes,) = draw_front(study_result(entries, baseline="static 8/8")).axes
    assert {text.get_text() for text in axes.texts} == {"static 8/8", "CPT 3-8/8", "static 3/8"}
    assert any(line.get_drawstyle() == "steps-post" for line in axes.get_lines())
    assert axes.get_xlabel() == "training cost: BitOPs, static 8/8 = 1"


def test_bits_that_change_have_their_own_colour():
    static, cyclic = summarize(made(ALIKE))[0].rows
    assert (colour_of(static), colour_of(cyclic)) == (PLAIN, FRONT)


def test_what_costs_many_times_as_much_is_a_line_with_its_cost():
    entries = [(method("static 8/8", 8), STATIC, 1.0), (method("far", 7), ALIKE, 16.0)]
    (axes,) = draw_front(study_result(entries, baseline="static 8/8")).axes
    assert "far,\ncost 16.0" in {text.get_text() for text in axes.texts}


def test_one_seed_is_said():
    (axes,) = draw_front(made({0: 91.0}, {0: 92.0}, seeds=(0,))).axes
    assert "one seed each" in axes.get_title(loc="left")


def test_the_legend_has_what_is_in_the_picture():
    entries = [
        (method("3-8", "CR:3-8:8"), BETTER, 60.0),
        (method("N = 2", "CR:3-8:2"), ALIKE, 50.0),
    ]
    (legend,) = draw_front(study_result(entries)).legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["bits that change", "filled: on the Pareto front, by mean", "front"]


def test_of_a_perplexity_lower_is_better_and_that_is_said():
    words = {
        "task": "language",
        "model": ModelConfig(name="lstm_lm"),
        "data": DataConfig(name="wikitext-2"),
    }
    (axes,) = draw_front(study_result([(method("8", 8, changes=words), STATIC, 1.0)])).axes
    assert "lower is better" in axes.get_title(loc="left")


def test_a_line_needs_no_mark_in_the_legend():
    far = method("float32", changes={"precision": PrecisionConfig()})
    entries = [(method("static 8/8", 8), STATIC, 1.0), (far, ALIKE, 16.0)]
    (legend,) = draw_front(study_result(entries, baseline="static 8/8")).legends
    assert "float32" not in {text.get_text() for text in legend.get_texts()}
