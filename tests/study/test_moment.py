"""Where a running run is, and how long the rest takes."""

import json

import pytest

from bitcycle.study.attempt import run_folder
from bitcycle.study.base import Method
from bitcycle.study.moment import TAIL, Moment, Paces, read_moment, seconds_left
from tests.study.small_studies import tiny, tiny_study


@pytest.fixture
def run(tmp_path):
    return next(iter(tiny_study().runs(str(tmp_path))))


def line(step, **changes):
    bits = {"weight": 3, "act": 3, "error": 8, "grad": 8}
    settings = {
        "step": step,
        "kind": "train",
        "accuracy": 50.0 + step,
        "bits": bits,
        "seconds": step / 2,
    }
    return json.dumps({**settings, **changes})  # fmt: skip


def write(run, text):
    folder = run_folder(run.config)
    folder.path.mkdir(parents=True)
    folder.metrics_file.write_text(text, encoding="utf-8")


def test_before_the_first_line_a_run_is_at_step_0(run):
    assert read_moment(run) == Moment(step=0, total_steps=4, metric="accuracy")
    assert read_moment(run).text() == "step 0/4  bits -"


def test_the_last_whole_line_about_training_counts(run):
    evaluation = json.dumps({"step": 2, "kind": "eval", "accuracy": 99.0})
    write(run, f"{line(1)}\n{line(2)}\n{evaluation}\n{line(3)[:20]}")
    moment = read_moment(run)
    assert moment == Moment(
        step=2, total_steps=4, bits="3/8", metric="accuracy", value=52.0, seconds=1.0
    )
    assert moment.text() == "step 2/4  bits 3/8  accuracy 52.00"
    assert moment.pace == 0.5


def test_of_a_long_file_only_the_end_is_read(run):
    write(run, "".join(f"{line(step)}\n" for step in range(1, 2 * TAIL // 50)))
    assert read_moment(run).step == 2 * TAIL // 50 - 1


def test_nothing_readable_is_no_moment(run):
    write(run, "[1]\nno\n")
    assert read_moment(run).step == 0


def test_the_time_left_is_that_of_all_steps_divided_by_the_jobs(tmp_path):
    study = tiny_study(seeds=(0, 1))  # four steps each
    first, second, third, fourth = study.runs(str(tmp_path))
    paces = Paces()
    assert seconds_left([first], [], paces, 1) is None
    paces.note(first, 1.0)
    paces.note(second, 3.0)
    at_work = [(third, Moment(step=1, total_steps=4, seconds=2.0))]  # 2 s a step, 3 steps left
    assert seconds_left([fourth], at_work, paces, 1) == 3 * 2.0 + 4 * 3.0
    assert seconds_left([fourth], at_work, paces, 2) == 12.0  # no run is divided
    assert seconds_left([first, fourth], [], paces, 1) == 4 * 1.0 + 4 * 3.0
    assert seconds_left([], [], paces, 1) == 0.0


def test_a_configuration_nobody_has_run_gets_the_mean_of_the_others(tmp_path):
    study = tiny_study(*(Method(label=str(b), config=tiny(b)) for b in (8, 6, 4)))
    eight, six, four = study.runs(str(tmp_path))
    paces = Paces()
    paces.note(eight, 1.0)
    paces.note(six, 2.0)
    paces.note(six, None)
    assert (paces.of(six), paces.of(four)) == (2.0, 1.5)


def test_without_a_number_of_steps_there_is_no_time_left(tmp_path):
    [run] = tiny_study(Method(label="8", config=tiny(steps=None, epochs=1.0))).runs(str(tmp_path))
    paces = Paces()
    paces.note(run, 1.0)
    assert seconds_left([run], [], paces, 1) is None
