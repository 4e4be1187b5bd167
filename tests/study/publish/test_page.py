"""The page of a study."""

import json
import re
from dataclasses import replace

from bitcycle.study.publish.jsontext import to_json
from bitcycle.study.publish.page import front_sentences, machine_text, study_page
from bitcycle.study.publish.restore import restore
from bitcycle.study.summary import summarize
from tests.study.publish.made import ALIKE, BETTER, STATIC, data_of, evidence_of, made


def page(result, **changes):
    return study_page(replace(evidence_of(result), **changes), [("picture", "made-up.svg")])


def test_it_has_the_question_the_answer_the_picture_and_the_commands():
    text = page(made(BETTER))
    assert text.startswith("<!-- made by bitcycle from data/made-up.json; an edit here is lost -->")
    assert "CPT 3-8/8 against static 8/8: 60 % of the cost" in text
    assert "![picture](made-up.svg)" in text
    assert "bitcycle study run made-up.yaml --output RUNS" in text
    assert "| CPT 3-8/8 | static 8/8 | +1.00 (0.75 to 1.25) | 3 | 0.600 | higher (better) |" in text


def test_a_difference_within_noise_is_called_that():
    text = page(made(ALIKE))
    assert re.search(r"\| CPT 3-8/8 \| static 8/8 \|.*\| within noise \|", text)
    assert re.search(r"\| CPT 3-8/8 \| static 8/8 \|.*\| no difference beyond noise \|", text)


def test_one_seed_has_no_interval_and_that_is_said():
    text = page(made({0: 95.0}, {0: 91.0}, seeds=(0,)))
    assert "cannot tell: one seed" in text
    assert "one seed cannot tell" in text
    assert "| CPT 3-8/8 | 95.00 | 1 |" in text


def test_runs_that_are_not_there_are_listed_by_name():
    text = page(made({0: 91.0, 1: None}))
    assert "## Runs that are not there" in text
    assert "- CPT 3-8/8, seed 1: failed: loss is nan\n- CPT 3-8/8, seed 2: missing" in text
    assert "Of 6 runs 1 failed, 1 missing." in text
    assert "## Runs that are not there" not in page(made(ALIKE))


def test_a_tampered_number_changes_the_page():
    data = data_of(made(ALIKE))
    other = json.loads(to_json(data))
    other["methods"][1]["runs"][0]["final"]["accuracy"] += 0.3
    assert study_page(restore(data), []) != study_page(restore(other), [])


def test_the_front_is_said_in_words_cheapest_first():
    groups = summarize(made(BETTER))
    assert front_sentences(groups)[0] == (
        "On the front, cheapest first: CPT 3-8/8 (92.50 ± 0.56). Not on it: static 8/8."
    )


def test_published_values_stand_beside_ours_with_what_differs():
    cell = {"value": 72.0, "cost": 12.0, "where": "CPT Table 2", "group": "ResNet-74, CIFAR-100",
            "training": "64,000 steps of 128"}  # fmt: skip
    published = {"static 8/8": cell, "CPT 3-8/8": {**cell, "value": 72.35, "cost": 8.0}}
    text = page(made(ALIKE, STATIC), published=published)
    assert "## Beside the published values" in text
    row = next(line for line in text.splitlines() if "| 72.35 |" in line)
    assert "| +0.35 | 0.600 | 0.667 | CPT Table 2, ResNet-74, CIFAR-100 |" in row
    assert (
        "What differs: Ours is digits\\_mlp, 240 steps of 64; published is ResNet-74, CIFAR-100, "
        "64,000 steps of 128." in text
    )


def test_the_machine_is_one_line():
    machine = {"processor": "AMD EPYC", "num_cpus": 2, "cpu_capability": "AVX2", "device": "cpu",
               "torch": "2.13.0", "python": "3.11.7", "bitcycle": "0.1.0"}  # fmt: skip
    assert machine_text(machine) == (
        "AMD EPYC, 2 cores, AVX2, torch 2.13.0, python 3.11.7, bitcycle 0.1.0"
    )
    text = page(made(ALIKE), machines=(machine,), threads=(1,))
    assert "Machine: AMD EPYC, 2 cores, AVX2" in text
    assert "bitcycle 0.1.0, 1 thread a run." in text
    assert "Wall-clock: 6 runs, 9.0 s one after another, 1.5 s each." in text
