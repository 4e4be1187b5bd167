"""Overrides, seeds and threads for every method of a study."""

from dataclasses import replace

import pytest

from bitcycle.study.study import Method, StudyOptions, adjust, override_all
from bitcycle.train.config_file import override
from tests.study.small_studies import tiny, tiny_study

CONFIGS = [tiny(8), tiny(4, steps=7), tiny("CR:3-8:1")]


@pytest.mark.parametrize(
    "words",
    [
        "--optimizer.lr 0.5 --optimizer.momentum=0.1 --data.root /x",
        "--model.options.width 8",
        "--precision.backward 6 --lr.milestones [0.25,0.5]",
        "",
    ],
)
def test_every_method_is_overridden_as_if_alone(words):
    arguments = words.split()
    assert override_all(CONFIGS, arguments) == [override(config, arguments) for config in CONFIGS]


def test_what_depends_on_each_methods_own_value_is_read_for_each():
    cycled = [tiny("CR:3-8:1"), tiny("CT:4-6:2")]
    found = override_all(cycled, ["--precision.forward.low", "2"])
    assert [config.precision.forward for config in found] == ["CR:2-8:1", "CT:2-6:2"]


def test_a_mistake_in_an_override_is_an_error():
    with pytest.raises(ValueError, match="unknown option '--step'; did you mean 'steps'"):
        override_all(CONFIGS, ["--step", "3"])
    with pytest.raises(ValueError, match="steps"):
        override_all(CONFIGS, ["--steps", "many"])


def test_threads_are_those_given_then_the_configurations_then_the_default():
    study = tiny_study(
        Method(label="8", config=tiny(threads=2)), Method(label="4", config=tiny(4, threads=None))
    )

    def threads(**options):
        adjusted = adjust(study, StudyOptions(**options))
        return [method.config.threads for method in adjusted.methods]

    assert threads() == [2, None]
    assert threads(default_threads=4) == [2, 4]
    assert threads(threads=3, default_threads=4) == [3, 3]


@pytest.mark.parametrize(
    ("word", "message"),
    [("--seed", "--seeds 0 1 2"), ("--name=x", "names its runs"), ("--output", "no override")],
)
def test_what_the_study_sets_itself_is_no_override(word, message):
    with pytest.raises(ValueError, match=message):
        StudyOptions(overrides=(word, "3"))


def test_no_threads_are_an_error():
    with pytest.raises(ValueError, match="must be at least 1"):
        replace(StudyOptions(), threads=0)
