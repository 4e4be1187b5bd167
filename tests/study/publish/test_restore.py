"""A study from its file alone."""

import copy
import json

import pytest

from bitcycle.study.headline import headline
from bitcycle.study.publish.jsontext import to_json
from bitcycle.study.publish.restore import read_data, restore
from bitcycle.study.summary import summarize
from bitcycle.study.table import study_tables
from tests.study.publish.made import ALIKE, BETTER, data_of, made


@pytest.mark.parametrize("cycled", [ALIKE, BETTER, {0: 91.0}, {0: 91.0, 1: None, 2: 90.0}, {}])
def test_its_tables_are_those_of_the_runs(cycled):
    result = made(cycled)
    again = restore(json.loads(to_json(data_of(result)))).result
    assert study_tables(again) == study_tables(result)
    assert headline(again) == headline(result)


def test_one_image_more_in_every_seed_is_still_no_interval():
    static = {k: 100 * (350 + k) / 360 for k in range(3)}
    cycled = {k: 100 * (351 + k) / 360 for k in range(3)}
    again = restore(json.loads(to_json(data_of(made(cycled, static)))))
    assert summarize(again.result)[0].rows[1].difference.is_beyond_noise is None


def test_a_file_without_a_key_is_an_error_that_says_what_to_do():
    data = copy.deepcopy(data_of(made(ALIKE)))
    del data["methods"][0]["runs"][0]["bitops"]
    with pytest.raises(ValueError, match=r"digits.json is damaged .*bitops.*publish it again"):
        restore(data, source="digits.json")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda run: run["final"].pop("accuracy"), "accuracy"),
        (lambda run: run["final"].update(accuracy="high"), "could not convert"),
        (lambda run: run.update(bitops="many"), "could not convert"),
        (lambda run: run.update(curve=[[1, 2, 3]]), "too many values"),
    ],
)
def test_wrong_values_are_named_with_their_file(change, why):
    data = copy.deepcopy(data_of(made(ALIKE)))
    change(data["methods"][0]["runs"][0])
    with pytest.raises(ValueError, match=rf"digits.json is damaged .*{why}.*publish it again"):
        restore(data, source="digits.json")


@pytest.mark.parametrize("part", [{"machines": ["fast"]}, {"machines": 3}, {"seeds": []}])
def test_wrong_parts_are_named_with_their_file(part):
    with pytest.raises(ValueError, match=r"digits.json is damaged .*publish it again"):
        restore({**data_of(made(ALIKE)), **part}, source="digits.json")


def test_a_setting_of_another_version_is_named_with_its_file():
    data = copy.deepcopy(data_of(made(ALIKE)))
    data["methods"][0]["settings"]["colour"] = 1
    with pytest.raises(ValueError, match=r"digits.json is damaged .*no setting 'colour'"):
        restore(data, source="digits.json")


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_file_is_named(tmp_path, text):
    path = tmp_path / "digits.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"digits\.json .*publish it again"):
        read_data(path)
