"""The page of a study."""

import json
import re
from dataclasses import replace

import pytest

from bitcycle.recipes import recipe
from bitcycle.study.base import STUDIES, Method
from bitcycle.study.publish.cycles import is_cyclic
from bitcycle.study.publish.jsontext import to_json
from bitcycle.study.publish.page import front_sentences, machine_text, study_page
from bitcycle.study.publish.restore import restore
from bitcycle.study.summary import summarize
from bitcycle.train.config import PrecisionConfig
from tests.study.made_up import method, study_result
from tests.study.publish.made import ALIKE, BETTER, STATIC, WORSE, data_of, evidence_of, made


def page(result, **changes):
    return study_page(replace(evidence_of(result), **changes), [("picture", "made-up.svg")])


def test_it_has_the_question_the_answer_the_picture_and_the_commands():
    text = page(made(BETTER))
    assert text.startswith("<!-- made by bitcycle from data/made-up.json; an edit here is lost -->")
    assert "CPT 3-8/8 against static 8/8: 60 % of the cost" in text
    assert "![picture](made-up.svg)" in text
    assert "bitcycle study run made-up.yaml --output RUNS" in text
    assert (
        "| CPT 3-8/8 | static 8/8 | +1.00 (0.75 to 1.25) | 3 | 0.003 | 0.600 | higher (better) |"
        in text
    )


def test_a_difference_within_noise_is_called_that():
    text = page(made(ALIKE))
    assert re.search(r"\| CPT 3-8/8 \| static 8/8 \|.*\| within noise \|", text)


def test_the_answer_is_about_static_bits_of_the_same_quantizer():
    def by(quantizer):
        precision = PrecisionConfig(forward=8, backward=8, quantizer=quantizer)
        cycled = replace(precision, forward="CR:3-8:8")
        return (method(quantizer, changes={"precision": precision}),
                method(f"{quantizer} CPT", changes={"precision": cycled}))  # fmt: skip

    entries = [(m, values, 1.0) for name, rows in (("sbm", (STATIC, BETTER)),
                                                   ("dorefa", (WORSE, STATIC)))
               for m, values in zip(by(name), rows, strict=True)]  # fmt: skip
    text = page(study_result(entries, baseline="sbm"))
    assert (
        "**Of 2 comparisons of a cyclic schedule with static bits at its top: 2 better, 0" in text
    )
    assert "against sbm" not in text


def test_a_schedule_without_static_bits_at_its_top_meets_the_baseline():
    entries = [
        (method("8", 8), STATIC, 100.0),
        (method("3-8", "CR:3-8:8"), BETTER, 60.0),
        (method("3-6", "CR:3-6:8"), WORSE, 50.0),
    ]
    text = page(study_result(entries, baseline="8"))
    assert "**3-8 against 8: 60 % of the cost, accuracy +1.00 points" in text
    assert "**Of 2 methods against 8: 1 better, 1 worse" in text


def test_two_tables_that_say_the_same_are_one():
    assert "## Differences to" not in page(made(ALIKE))
    entries = [
        (method("static 8/8", 8), STATIC, 100.0),
        (method("CPT 3-8/8", "CR:3-8:8"), ALIKE, 60.0),
        (method("static 6/8", 6), ALIKE, 70.0),
    ]
    text = page(study_result(entries, baseline="static 8/8"))
    assert "## Differences to static 8/8" in text
    assert re.search(r"\| static 6/8 \| static 8/8 \|.*\| no difference beyond noise \|", text)


def test_deficits_of_varied_length_have_no_front():
    text = page(made(ALIKE, kind="critical-periods"))
    assert "Pareto" not in text
    assert "| front |" not in text
    assert "Front:" not in text
    assert "| front |" in page(made(ALIKE))


def test_only_folders_that_the_commands_name_are_explained():
    assert "RUNS stands for a folder." in page(made(ALIKE))
    commands = ("bitcycle study run a --output RUNS --data.root DATA",)
    assert "DATA and RUNS stand for folders." in page(made(ALIKE), commands=commands)


def test_the_bits_of_the_evaluation_are_those_of_each_method():
    text = page(made(ALIKE))
    assert "| evaluated at |" in text
    assert "| FW8/BW8 |" in text


def test_one_seed_has_no_interval_and_that_is_said():
    text = page(made({0: 95.0}, {0: 91.0}, seeds=(0,)))
    assert "cannot tell: one seed" in text
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
    text = page(made(ALIKE, scale="small"), published=published)
    assert "## Beside the published values" in text
    row = next(line for line in text.splitlines() if "| 72.35 |" in line)
    assert "| +0.35 | 0.600 | 0.667 | CPT Table 2, ResNet-74, CIFAR-100 |" in row
    assert (
        "What differs: Ours is digits\\_mlp, 240 steps of 64; published is ResNet-74, CIFAR-100, "
        "64,000 steps of 128. Where ours has 8 cycles the paper has 32. Ours counts float32 "
        "layers as such (exact convention), the paper every layer at the scheduled bits." in text
    )


def test_several_lengths_of_one_network_are_one_sentence():
    cell = {"value": 72.0, "cost": None, "where": "CPT Table 2", "group": "ResNet-74, CIFAR-100",
            "training": "64,000 steps of 128"}  # fmt: skip
    methods = [
        method("8", 8, group=f"net, {steps:,} steps", changes={"steps": steps})
        for steps in (60, 1200)
    ]
    result = study_result([(each, STATIC, 100.0) for each in methods], baseline="8")
    text = page(result, published={each.key: cell for each in methods})
    assert (
        "What differs: Ours is net, 60 steps of 64 or 1,200 steps of 64; published is ResNet-74, "
        "CIFAR-100, 64,000 steps of 128. Published numbers" in text
    )


def test_costs_are_explained_where_a_paper_has_them():
    cell = {"value": 72.0, "cost": None, "where": "CPT Table 8", "group": "ResNet-74, CIFAR-100",
            "training": "64,000 steps of 128"}  # fmt: skip
    text = page(made(ALIKE), published={"static 8/8": cell, "CPT 3-8/8": cell})
    assert "What differs" in text
    assert "exact convention), the paper" not in text


def test_a_recipe_is_named_where_the_method_has_its_settings():
    own = recipe("digits-cpt-3-8-8")
    entries = [
        (Method(label=label, config=config), ALIKE, 1.0)
        for label, config in (("same", own), ("threads", replace(own, threads=1)),
                              ("identity", replace(own, name="digits-cpt-3-8-8-99b5c45650")),
                              ("longer", replace(own, steps=300)))
    ]  # fmt: skip
    lines = page(study_result(entries)).splitlines()
    (heading,) = (line for line in lines if "| identity | recipe |" in line)
    rows = lines[lines.index(heading) + 2 :][:4]
    assert [row.split(" | ")[-1].strip(" |") for row in rows] == [
        "digits-cpt-3-8-8", "digits-cpt-3-8-8", "digits-cpt-3-8-8", "-",
    ]  # fmt: skip
    assert any(line.startswith("All settings: `bitcycle train RECIPE --print-") for line in lines)
    assert "--print-config" not in page(made(ALIKE))


def test_the_machine_is_one_line():
    machine = {"processor": "AMD EPYC", "num_cpus": 2, "cpu_capability": "AVX2", "device": "cpu",
               "torch": "2.13.0", "python": "3.11.7", "bitcycle": "0.1.0"}  # fmt: skip
    assert machine_text(machine) == (
        "AMD EPYC, 2 cores, AVX2, torch 2.13.0, python 3.11.7, bitcycle 0.1.0"
    )
    text = page(made(ALIKE), machines=(machine,), threads=(1,))
    assert "Machine: AMD EPYC, 2 cores, AVX2" in text
    assert "bitcycle 0.1.0, 1 thread a run." in text
    assert "Wall-clock: 6 runs, 9.0 s one after another, 1.5 s each, with" in text


@pytest.mark.parametrize("name", [n for n in STUDIES.names() if STUDIES[n]().scale == "small"])
def test_every_small_study_has_a_page_without_holes(name):
    study = STUDIES[name]()
    entries = [
        (method, {seed: 90.0 + (3 * k + 7 * seed) % 11 / 10 for seed in study.seeds}, 10.0 + k)
        for k, method in enumerate(study.methods)
    ]
    settings = {field: getattr(study, field) for field in ("name", "description", "baseline",
                "kind", "scale", "notes", "seeds")}  # fmt: skip
    text = page(study_result(entries, **settings))
    for odd in ("nan", "None", "inf ", "|  |"):
        assert odd not in text, odd
    has_cycles = any(is_cyclic(method.config) for method in study.methods)
    alone = ("table6-small", "table7-small")
    assert ("at the same top" in text) == (has_cycles and name not in alone)


def test_the_same_difference_of_a_paper_stands_beside_ours():
    cell = {"value": 71.83, "cost": None, "where": "CPT Table 2", "group": "ResNet-74, CIFAR-100",
            "training": "64,000 steps of 128"}  # fmt: skip
    published = {"static 8/8": cell, "CPT 3-8/8": {**cell, "value": 72.35}}
    text = page(made(ALIKE, scale="small"), published=published)
    assert "| n | p | cost | published | verdict |" in text
    assert "| 0.600 | +0.52 | within noise |" in text
    assert "Published: the same difference in the paper's table" in text
    other = {**published, "CPT 3-8/8": {**cell, "group": "ResNet-38, CIFAR-100"}}
    assert "| published | verdict |" not in page(made(ALIKE, scale="small"), published=other)


def test_cycles_that_stay_below_their_upper_end_are_named():
    entries = [
        (method("8", 8), STATIC, 100.0),
        (method("RR", "RR:3-8:8"), ALIKE, 60.0),
        (method("RT-V", "RT-V:3-8:8"), ALIKE, 70.0),
        (method("CR", "CR:3-8:8"), ALIKE, 65.0),
    ]
    assert (
        "Below the upper end, at which all are evaluated: RR in 240 steps reaches 7 bits at most; "
        "RT-V in 240 steps ends at 7 bits." in page(study_result(entries, baseline="8"))
    )
