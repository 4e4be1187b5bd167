"""Studies: their runs, studies that are refused, options for all methods."""

from dataclasses import replace

import pytest

from bitcycle_lab.study.study import Method, Study, StudyOptions, adjust, override_all
from bitcycle_lab.study.study_file import find_study
from bitcycle_lab.train.config_file import override
from bitcycle_lab.train.config_id import config_id
from tests.bitcycle_lab.study.small_studies import tiny, tiny_study
from tests.bitcycle_lab.train.small import lstm

# -- studies and their runs -----------------------------------------------------------------------


def test_runs_go_seed_by_seed_in_folders_named_after_their_settings():
    study = tiny_study(seeds=(0, 3))
    runs = list(study.runs("out"))
    order = [("8", 0), ("4", 0), ("8", 3), ("4", 3)]
    assert [(run.method.label, run.seed) for run in runs] == order
    assert [run.config.run_name for run in runs[:3]] == [
        f"small-{config_id(tiny(8))}-seed0",
        f"small-{config_id(tiny(4))}-seed0",
        f"small-{config_id(tiny(8))}-seed3",
    ]
    assert all((run.config.output, run.config.seed) == ("out", run.seed) for run in runs)


def test_a_method_may_have_only_the_first_seeds():
    slow, fast = Method(label="8", config=tiny(8), num_seeds=1), Method(label="4", config=tiny(4))
    study = tiny_study(slow, fast, seeds=(5, 3))
    order = [("8", 5), ("4", 5), ("4", 3)]
    assert [(run.method.label, run.seed) for run in study.runs("out")] == order
    fewer = adjust(study, StudyOptions(seeds=(7,)))
    assert [(run.method.label, run.seed) for run in fewer.runs("out")] == [("8", 7), ("4", 7)]


def test_a_method_keeps_its_folder_when_others_are_added_and_gets_another_when_changed():
    [run] = tiny_study(Method(label="8", config=tiny(8))).runs("out")
    assert run.config.run_name in [r.config.run_name for r in tiny_study().runs("out")]
    [changed] = tiny_study(Method(label="8", config=replace(tiny(8), steps=5))).runs("out")
    assert changed.config.run_name != run.config.run_name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "'a/b'"),
        ({"methods": ()}, "methods"),
        ({"methods": (Method(label="8", config=tiny(8), num_seeds=0),)}, r"num_seeds \(0\).*'8'"),
        ({"seeds": ()}, "seeds"),
        ({"seeds": (1, 1)}, r"\(1, 1\)"),
        ({"methods": (Method(label="8", config=tiny()),) * 2}, "8"),
        ({"baseline": "9"}, "'9' .*4, 8"),
    ],
)
def test_a_study_that_cannot_be_is_an_error(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(tiny_study(), **changes)


def test_a_group_of_two_tasks_is_an_error(tmp_path):
    words = Method(label="words", config=lstm(tmp_path, tmp_path))
    with pytest.raises(ValueError, match="images, language"):
        Study(name="x", description="", methods=(Method(label="8", config=tiny()), words))


# -- options --------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="'--step'; did you mean '--steps'"):
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


@pytest.mark.parametrize("word", ["--seed", "--name=x", "--output"])
def test_what_the_study_sets_itself_is_no_override(word):
    with pytest.raises(ValueError, match=word.partition("=")[0]):
        StudyOptions(overrides=(word, "3"))


def test_no_threads_are_an_error():
    with pytest.raises(ValueError, match="0"):
        StudyOptions(threads=0)


def test_notes_say_which_settings_were_changed():
    study = adjust(find_study("digits"), StudyOptions(overrides=("--steps", "60")))
    assert study.notes[-1].endswith("--steps 60")
    where = StudyOptions(overrides=("--data.root", "x", "--tracking.log_every=5"), threads=2)
    assert adjust(find_study("digits"), where).notes == find_study("digits").notes
