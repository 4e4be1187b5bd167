"""The committed results: every page, picture and made part is what its data files give."""

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from bitcycle.analysis.config_id import config_id
from bitcycle.recipes import recipe
from bitcycle.study.study import STUDIES
from bitcycle.train.config_file import override
from tools.results.folder import PARTS, fill, render
from tools.results.page import creator
from tools.results.pictures import bits_and_cost, front
from tools.results.study_data import from_settings, published_cells, recipe_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "<!-- made: " in path.read_text(encoding="utf-8")
]
LARGEST = 400_000  # bytes of a file


def page(name):
    return (RESULTS / f"{name}.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rendered():
    return render(RESULTS)


@pytest.mark.slow  # draws every picture
def test_every_page_is_what_its_data_give(rendered):
    for name, text in rendered.items():
        stored = (RESULTS / name).read_text(encoding="utf-8")
        if name.endswith(".svg") and creator() not in stored:
            continue  # another matplotlib draws other bytes
        assert stored == text, f"{name}: python -m tools.results render results"


@pytest.mark.slow  # draws every picture
def test_nothing_else_lies_there(rendered):
    assert {path.name for path in RESULTS.iterdir()} == {*rendered, "data"}
    assert {path.suffix for path in (RESULTS / "data").iterdir()} == {".json"}
    assert all(path.stat().st_size < LARGEST for path in RESULTS.rglob("*") if path.is_file())


def test_no_page_has_anything_of_a_machine_in_it():
    for path in RESULTS.rglob("*"):
        if path.suffix in (".md", ".json"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.<])/(tmp|home|root|work|Users|mnt)/", text), path.name


def test_the_first_page_fits_a_screen():
    text = page("README")
    assert len(text.splitlines()) <= 40
    words = re.findall(r"[A-Za-z][\w'.-]*", re.sub(r"\]\([^)]*\)|<!--.*?-->", "]", text))
    assert len(words) <= 420
    lines = re.findall(r"(?m)^- \*\*\[?(.*?)[].]", text)
    assert lines == ["Bit operations", "Time", "Images", "Language"]


@pytest.mark.parametrize("path", sorted(set(RESULTS.glob("*.md")) - {RESULTS / "README.md"}))
def test_a_page_is_one_sentence_a_picture_a_table_and_commands(path):
    text = path.read_text(encoding="utf-8")
    before, picture, after = text.partition(f"]({path.stem}.svg)\n")
    assert picture
    [answer] = re.findall(r"\*\*(.*?)\*\*", before)
    assert re.fullmatch(r"[A-Z][^.]*(\.\d[^.]*)*\.", answer)  # full stops: of numbers and the last
    assert len(answer.split()) <= 55
    assert not re.search(r"\([^)]*\(", answer)  # no brackets inside brackets
    shown, _, folded = after.partition("<details")
    assert shown.count("\n| ---") == 1
    assert len([line for line in shown.splitlines() if line.startswith("| ")]) <= 17
    assert shown.count("```text") == 1
    assert "tools.results render" in folded


def test_the_sentences_of_two_studies_are_those_of_their_runs():
    """Made again from the JSON alone."""
    study = json.loads((RESULTS / "data" / "digits.json").read_text(encoding="utf-8"))
    values = {label: found for (_, label), found in final_values(study, "accuracy").items()}
    bitops = {m["label"]: m["runs"][0]["bitops"] for m in study["methods"]}
    largest, saved = 0.0, []
    for own, base in (("CPT 3-8/8", "static 8/8"), ("CPT 3-6/6", "static 6/6")):
        low, high = difference_interval(values[own], values[base])
        assert low < 0 < high
        largest = max(largest, -low, high)
        saved.append(round(100 * (1 - bitops[own] / bitops[base])))
    assert (
        "**On digits a small ResNet-8 trained for 240 steps with CPT 3-8/8 or CPT 3-6/6 ended "
        f"within noise of static bits (n = 20, 95 % intervals within "
        f"±{math.ceil(100 * largest) / 100:.2f} points) and used {min(saved)} % to {max(saved)} % "
        "fewer bit operations.**"
    ) in page("digits")

    study = json.loads((RESULTS / "data" / "lengths.json").read_text(encoding="utf-8"))
    values = {key: found for key, found in final_values(study, "accuracy").items() if found}
    sentence = re.search(r"\*\*(.*)\*\*", page("lengths"))[1]
    assert sentence.startswith("After 8,000 steps on CIFAR-10 a ResNet-8 ended ")
    for label in ("CPT 3-8/8, N = 32", "CPT 4-8/8, N = 32"):
        group = "ResNet-8, CIFAR-10, 8,000 steps"
        base, own = values[group, "static 8/8"], values[group, label]
        own = {seed: value for seed, value in own.items() if seed in base}
        found = re.search(
            rf"[\d.]+ points (above|below)[^()]* \(([^()]*)\) with {label.partition(',')[0]}",
            sentence,
        )
        low, high = difference_interval(own, base)
        ends = [float(n) for n in re.search(r"(-?[\d.]+) to (-?[\d.]+), n", found[2]).groups()]
        signed = sorted(-end for end in ends) if found[1] == "below" else ends
        assert signed == pytest.approx([low, high], abs=0.06)
        assert f"n = {len(own)}" in found[2]
        assert bool(re.search("within noise(?! when)", found[2])) == (low < 0 < high)


def difference_interval(own, base):
    change = [own[seed] - base[seed] for seed in own]
    return stats.t.interval(0.95, len(change) - 1, stats.tmean(change), stats.sem(change))


def test_other_sentences_say_what_the_tables_have():
    """Read from the tables: every number below is in the row that the sentence is about."""
    sentences = {
        "gcn-small": "On Cora a GCN and a GraphSAGE trained for 200 steps with CPT 3-8/8 ended "
        "within noise of static 8/8 in each of 4 comparisons (n = 5, 95 % intervals within ±1.9 "
        "points) and used 38 % to 41 % fewer bit operations.",
        "memory": "Of the bytes that float32 keeps for the backward pass, training at 8 bits keeps "
        "102 % to 171 % with the kernel simulate and 57 % to 71 % with the kernel dequantize or "
        "native.",
    }
    for name, answer in sentences.items():
        assert f"**{answer}**" in page(name)


def test_the_picture_of_the_readme_has_the_bits_and_the_cost_of_the_runs():
    study = json.loads((RESULTS / "data" / "digits.json").read_text(encoding="utf-8"))
    methods = {method["label"]: method for method in study["methods"]}
    bits, shares = bits_and_cost(methods["CPT 3-8/8"])
    # 8 cosine cycles of 30 steps, each from 3 to 8; cost 0.634 of static 8/8 on the page
    assert bits[:30:29] == bits[210::29] == [3, 8]
    static = methods["static 8/8"]["runs"][0]["bitops"]
    assert shares[-1] / static == pytest.approx(0.634, abs=5e-4)
    assert shares[-1] == methods["CPT 3-8/8"]["runs"][0]["bitops"]
    assert shares[29] * 8 == pytest.approx(shares[-1], rel=0.001)  # cycles cost the same
    # At b bits forward the forward product costs b * b and the two with errors of 8 bits 8 * b
    # each: 57 at 3 bits, 192 at 8. A last layer in float32 adds the same to both.
    steps = [b - a for a, b in zip([0.0, *shares], shares, strict=False)]
    assert 57 / 192 < steps[0] / steps[29] < 1.1 * 57 / 192
    runs_at_3 = methods["static 3/8"]["runs"][0]["bitops"]
    assert steps[0] / steps[29] == pytest.approx(runs_at_3 / static, rel=1e-3)
    assert (RESULTS / "front.svg").stat().st_size < 120_000


def test_the_picture_of_the_readme_needs_no_run_that_is_not_done():
    study = json.loads((RESULTS / "data" / "digits.json").read_text(encoding="utf-8"))
    methods = {method["label"]: method for method in study["methods"]}
    runs = methods["CPT 3-8/8"]["runs"]
    runs[0] = {"seed": runs[0]["seed"], "state": "pending"}
    runs[1]["curve"][0][1] = "nan"
    assert front(study).startswith("<?xml")
    methods["CPT 3-8/8"]["label"] = "another"
    assert front(study) is None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_made_parts_of_documents_are_what_the_data_give(path):
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- made: (.*?) -->", text)) <= set(PARTS)
    assert fill(text, RESULTS, path) == text, (
        f"python -m tools.results render results --fill {path.relative_to(ROOT)}"
    )


def test_links_of_pages_lead_somewhere():
    for path in RESULTS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert (RESULTS / target).exists(), (path.name, target)


def test_every_study_has_its_time_and_its_number_of_runs():
    stored = json.loads((RESULTS / "data" / "studies.json").read_text(encoding="utf-8"))
    found = {row["name"]: row["runs"] for row in stored["studies"]}
    assert list(found) == list(STUDIES.names()), "python -m tools.results times ..."
    for name, number in found.items():
        planned = {run.config.run_name for run in STUDIES[name]().runs("runs")}
        assert number == len(planned), f"python -m tools.results times ... --only {name}"


# -- numbers, computed here from the JSON alone ---------------------------------------------------


@pytest.mark.slow  # builds every configuration from its command
def test_the_recipe_and_the_options_of_every_method_are_its_run():
    for path in sorted((RESULTS / "data").glob("*.json")):
        study = json.loads(path.read_text(encoding="utf-8"))
        for method in study["methods"] if study["kind"] == "study" else []:
            config = from_settings(method["settings"])
            name, *words = shlex.split(recipe_of(config))
            repeated = replace(override(recipe(name), words), threads=config.threads)
            assert config_id(repeated) == method["id"], (path.name, method["label"])


def final_values(study, metric):
    return {
        (method["group"], method["label"]): {
            run["seed"]: run["final"][metric] for run in method["runs"] if run["state"] == "done"
        }
        for method in study["methods"]
    }


def cells_of(page):
    """The cells of the table of all methods: the first one, or that in the details."""
    table = page.split("All methods:")[-1].partition("| ---")[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_values_differences_and_costs_of_a_page_are_those_of_its_runs():
    study = json.loads((RESULTS / "data" / "digits.json").read_text(encoding="utf-8"))
    values = {label: found for (_, label), found in final_values(study, "accuracy").items()}
    bitops = {m["label"]: m["runs"][0]["bitops"] for m in study["methods"]}
    cells = {m["label"]: m.get("published", {}).get("value") for m in study["methods"]}
    rows = cells_of(page("digits"))
    assert [row[0] for row in rows] == list(values)
    for label, value, cost, n, against, difference, published in rows:
        own = list(values[label].values())
        low, high = stats.t.interval(0.95, len(own) - 1, stats.tmean(own), stats.sem(own))
        assert numbers(value) == pytest.approx([stats.tmean(own), low, high], abs=0.06)
        assert float(cost) == pytest.approx(bitops[label] / bitops["static 8/8"], rel=5e-3)
        assert int(n) == len(own)
        if against == "-":
            continue
        change = [values[label][seed] - values[against][seed] for seed in values[label]]
        low, high = stats.t.interval(0.95, len(change) - 1, stats.tmean(change), stats.sem(change))
        assert numbers(difference) == pytest.approx([stats.tmean(change), low, high], abs=0.06)
        if published != "-":
            assert float(published) == pytest.approx(cells[label] - cells[against])


def numbers(text):
    return [float(number) for number in re.findall(r"[-+]?\d+\.\d+|[-+]?\d+", text)]


def test_the_rows_of_the_first_page_are_those_of_the_runs():
    rows = [line for line in page("README").splitlines() if line.startswith("| [")]
    assert len(rows) >= 5
    for line in rows:
        network, steps, own, base, difference, cost, n, _ = (
            cell.strip() for cell in line.strip("|").split(" | ")
        )
        name = re.search(r"\((.*)\.md\)", network)[1]
        study = json.loads((RESULTS / "data" / f"{name}.json").read_text(encoding="utf-8"))
        where = re.search(r"\[(.*)\]", network)[1].replace(" on ", ", ")
        where = {where, f"{where}, {steps} steps"}
        (own, _), (base, _) = (text.rsplit(": ", 1) for text in (own, base))
        methods = {m["label"]: m for m in study["methods"] if m["group"] in where}
        runs = [
            {run["seed"]: run for run in methods[label]["runs"] if run["state"] == "done"}
            for label in (own, base)
        ]
        metric = next(iter(next(iter(runs[0].values()))["final"]))
        seeds = sorted(runs[0].keys() & runs[1].keys())
        change = [runs[0][s]["final"][metric] - runs[1][s]["final"][metric] for s in seeds]
        assert int(n) == len(change)
        assert numbers(difference)[0] == pytest.approx(stats.tmean(change), abs=0.06)
        ratio = runs[0][seeds[0]]["bitops"] / runs[1][seeds[0]]["bitops"]
        assert float(cost) == pytest.approx(ratio, rel=5e-3)


@pytest.mark.parametrize(
    "name", ["digits", "lengths", "table1-small", "table5-small", "table8-small"]
)
def test_identities_and_published_cells_are_those_of_the_package(name):
    study = json.loads((RESULTS / "data" / f"{name}.json").read_text(encoding="utf-8"))
    cells = published_cells(STUDIES[name]())
    for method in study["methods"]:
        assert config_id(from_settings(method["settings"])) == method["id"]
        assert cells.get(f"{method['group']}: {method['label']}") == method.get("published")
