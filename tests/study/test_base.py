"""A study's runs, and studies that cannot be."""

from dataclasses import replace

import pytest

from bitcycle.analysis.config_id import config_id
from bitcycle.study.study import Method, Study
from tests.study.small_studies import tiny, tiny_study
from tests.train.small import lstm


def test_runs_go_seed_by_seed_in_folders_named_after_their_settings():
    study = tiny_study(seeds=(0, 3))
    runs = list(study.runs("out"))
    assert [(run.method.label, run.seed) for run in runs] == [
        ("8", 0),
        ("4", 0),
        ("8", 3),
        ("4", 3),
    ]
    assert [run.config.run_name for run in runs[:3]] == [
        f"small-{config_id(tiny(8))}-seed0",
        f"small-{config_id(tiny(4))}-seed0",
        f"small-{config_id(tiny(8))}-seed3",
    ]
    assert all((run.config.output, run.config.seed) == ("out", run.seed) for run in runs)


def test_a_method_keeps_its_folder_when_others_are_added_and_gets_another_when_changed():
    [run] = tiny_study(Method(label="8", config=tiny(8))).runs("out")
    assert run.config.run_name in [r.config.run_name for r in tiny_study().runs("out")]
    [changed] = tiny_study(Method(label="8", config=replace(tiny(8), steps=5))).runs("out")
    assert changed.config.run_name != run.config.run_name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "usable as a folder name"),
        ({"methods": ()}, "has no methods"),
        ({"seeds": ()}, "at least one, each once"),
        ({"seeds": (1, 1)}, "at least one, each once"),
        ({"methods": (Method(label="8", config=tiny()),) * 2}, "two methods of one name: 8"),
        ({"baseline": "9"}, "'9' of study 'tiny' is none of its methods: 4, 8"),
    ],
)
def test_a_study_that_cannot_be_is_an_error(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(tiny_study(), **changes)


def test_a_group_of_two_tasks_is_an_error(tmp_path):
    words = Method(label="words", config=lstm(tmp_path, tmp_path))
    with pytest.raises(ValueError, match="mixes the tasks images, language"):
        Study(name="x", description="", methods=(Method(label="8", config=tiny()), words))
