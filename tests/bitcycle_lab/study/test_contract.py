"""What every study that comes with the package keeps to."""

import re
from pathlib import Path

import pytest

from bitcycle.schedules import parse_schedule
from bitcycle_lab.data import DATASETS
from bitcycle_lab.study.study import STUDIES
from bitcycle_lab.train.config_id import config_id

NAMES = STUDIES.names()


@pytest.fixture(scope="module")
def studies():
    return {name: STUDIES[name]() for name in NAMES}


def test_a_study_has_the_name_it_is_found_by_and_asks_a_question(studies):
    for name in NAMES:
        study = studies[name]
        assert study.name == name
        assert len(study.description) > 20


def test_no_two_methods_of_a_study_are_the_same_run(studies):
    for name in NAMES:
        ids = [config_id(method.config) for method in studies[name].methods]
        assert len(set(ids)) == len(ids)


def test_every_group_has_the_baseline(studies):
    for name in NAMES:
        study = studies[name]
        for group in study.groups:
            assert study.baseline in [method.label for method in study.of(group)], group


def test_kernels_are_pinned_so_that_machines_agree(studies):
    for name in NAMES:
        for method in studies[name].methods:
            precision = method.config.precision
            is_pinned = precision.kernel in ("simulate", "native")  # never chosen by processor
            assert precision.is_float or is_pinned, method.key


def test_a_small_study_says_so_and_its_runs_take_one_thread(studies):
    for name in NAMES:
        study = studies[name]
        is_small = name.endswith("-small") or name in ("demo", "digits", "lengths")
        assert study.scale == ("small" if is_small else "full")
        if is_small:
            assert {method.config.threads for method in study.methods} == {1}
            assert not any(method.published for method in study.methods)


def test_no_study_asks_for_files_by_a_path_of_its_own(studies):
    for name in NAMES:
        for method in studies[name].methods:
            assert method.config.data.root is None
            assert method.config.data.name in DATASETS


def test_the_schedules_of_a_study_fit_its_runs(studies):
    for name in NAMES:
        for method in studies[name].methods:
            total = method.config.steps or 50_000
            for text in method.config.precision.schedule_texts(auto=3).values():
                for inner in text.values() if isinstance(text, dict) else [text]:
                    schedule = parse_schedule(inner)
                    schedule(0, total)
                    schedule(total - 1, total)


def test_what_a_critical_periods_study_varies_is_on_its_methods(studies):
    for name in NAMES:
        study = studies[name]
        varied = [method.at for method in study.methods if method.label != study.baseline]
        if study.kind == "critical-periods":
            assert None not in varied
        else:
            assert set(varied) <= {None}


def test_every_table_and_figure_of_cpt_with_runs_has_a_study_of_both_sizes():
    tables = [f"table{n}" for n in range(1, 9)]
    figures = [f"fig{n}" for n in (1, 2, 4, 5, 6, 7, 8, 9)]
    for name in (*tables, *figures, "schedule-suite", "critical-periods"):
        assert {name, f"{name}-small"} <= set(NAMES), name


def test_every_study_is_documented_with_its_number_of_runs(studies):
    text = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if re.match(r"\| \[?`", line)]
    documented = {re.findall(r"`(.*)`", row[0])[0]: int(row[3]) for row in rows if len(row) == 7}
    assert documented == {
        name: sum(1 for _ in study.runs("runs")) for name, study in studies.items()
    }
