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


@pytest.mark.slow  # draws every picture
def test_the_first_page_fits_a_screen(rendered):
    assert len(rendered["README.md"].splitlines()) <= 40


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
            run["seed"]: run["final"][metric] for run in method["runs"]
        }
        for method in study["methods"]
    }


def cells_of(page):
    """(cells before the first empty line after the heading row) of the first table."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    end = next((i for i, line in enumerate(lines[2:], 2) if "---" in line), len(lines) + 1)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2 : end - 1]]


@pytest.mark.parametrize("name", ["digits", "cifar10-small"])
def test_values_differences_and_costs_of_a_page_are_those_of_its_runs(name):
    study = json.loads((RESULTS / "data" / f"{name}.json").read_text(encoding="utf-8"))
    values = {label: found for (_, label), found in final_values(study, "accuracy").items()}
    bitops = {m["label"]: m["runs"][0]["bitops"] for m in study["methods"]}
    cells = {m["label"]: m.get("published", {}).get("value") for m in study["methods"]}
    rows = cells_of(page(name))
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


def test_the_counts_of_the_first_page_are_those_of_the_runs():
    """Every pair of cyclic and static bits on the pages, once for each pair of identities."""
    pairs = {}
    for path in sorted((RESULTS / "data").glob("*.json")):
        study = json.loads(path.read_text(encoding="utf-8"))
        if study["kind"] != "study" or study["question"] == "critical-periods":
            continue
        metric = next(iter(study["methods"][0]["runs"][0]["final"]))
        values = final_values(study, metric)
        ids = {(m["group"], m["label"]): m["id"] for m in study["methods"]}
        groups = list(dict.fromkeys(group for group, _ in values))
        for row in cells_of(page(path.stem)):
            group, row = (row[0], row[1:]) if len(groups) > 1 else (groups[0], row)
            against = row[4]
            if against in ("-", "float32") or row[0].startswith("progressive"):
                continue
            if study["name"] == "table8-small" and against == "static 6/6":
                continue  # the baseline: its top is lower
            own, base = values[group, row[0]], values[group, against]
            key = ids[group, row[0]], ids[group, against]
            change = [own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())]
            if len(change) > len(pairs.get(key, ())):
                pairs[key] = change if metric == "accuracy" else [-x for x in change]
    verdicts = []
    for change in pairs.values():
        half = stats.t.ppf(0.975, len(change) - 1) * stats.sem(change)
        mean = stats.tmean(change)
        verdicts.append(0 if abs(mean) <= half else math.copysign(1, mean))
    better, alike, worse = (verdicts.count(side) for side in (1, 0, -1))
    assert f"{len(pairs)} comparisons" in page("README")
    assert f"{better} better, {alike} within noise, {worse} worse" in page("README")


@pytest.mark.parametrize("name", ["digits", "table1-small", "table5-small", "table8-small"])
def test_identities_and_published_cells_are_those_of_the_package(name):
    study = json.loads((RESULTS / "data" / f"{name}.json").read_text(encoding="utf-8"))
    cells = published_cells(STUDIES[name]())
    for method in study["methods"]:
        assert config_id(from_settings(method["settings"])) == method["id"]
        assert cells.get(f"{method['group']}: {method['label']}") == method.get("published")
