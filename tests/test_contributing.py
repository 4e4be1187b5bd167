"""The tree of CONTRIBUTING.md is that of the source, and its walks are followed by execution."""

import inspect
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bitcycle as bc
from bitcycle.nn.control import LEVELS
from bitcycle_lab.cli.main import main
from bitcycle_lab.study.engines import base, local
from tests.test_layering import ROOTS, imports_of_file, package_and_part, sources

SRC = ROOTS["bitcycle"].parent
CATALOGUE = "bitcycle.formats.catalogue."  # a helper that lies in a folder of its own
TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def block_after(sentence: str) -> list[str]:
    """The lines of the text block that follows a sentence or heading."""
    match = re.search(re.escape(sentence) + r".*?```text\n(.*?)```", TEXT, re.DOTALL)
    assert match, sentence
    return match[1].splitlines()


# -- the tree -------------------------------------------------------------------------------------


def parts_of(package: str) -> list[str]:
    """The folders and files of a package, in the order of the tree."""
    lines = block_after("## The tree")
    begin = [line.split()[0] for line in lines].index(f"src/{package}/") + 1
    found: list[str] = []
    for line in lines[begin:]:
        if not line.startswith("  "):
            break
        names = re.split(r"\s{3,}", line.strip())[0].split("  ")
        found += [name.strip().removesuffix("/") for name in names]
    return found


@pytest.mark.parametrize("package", ROOTS)
def test_the_tree_has_every_folder_and_file_of_the_top_level(package):
    folders = {p.name for p in ROOTS[package].iterdir() if (p / "__init__.py").exists()}
    files = {p.stem for p in ROOTS[package].glob("*.py")} - {"__init__", "__main__"}
    assert sorted(parts_of(package)) == sorted(folders | files)


@pytest.mark.parametrize("package", ROOTS)
def test_a_file_imports_only_files_above_it_in_the_tree(package):
    parts = parts_of(package)
    wrong = []
    for path in sources(package):
        part = package_and_part(path)[1]
        if part not in parts:  # __init__ and __main__
            continue
        names = {n for n in imports_of_file(path) if n.startswith(f"{package}.")}
        below = {n.split(".")[1] for n in names if not n.startswith(CATALOGUE)}
        wrong += [(part, name) for name in below if name in parts[parts.index(part) + 1 :]]
    assert wrong == []


# -- the walks ------------------------------------------------------------------------------------

WALKS = {
    "step": block_after("A step of a converted convolution"),
    "schedule": block_after("A schedule, from the text"),
    "run": block_after("A training run"),
    "study": block_after("A study"),
}


def stations(walk: str) -> list[tuple[str, str]]:
    """(file, name) of every line."""
    return [tuple(line.split()[:2]) for line in WALKS[walk]]  # type: ignore[misc]


def find(file: str, name: str) -> object:
    thing: object = import_module(file.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_has_at_most_eight_lines_and_names_what_is_there(walk):
    assert 0 < len(stations(walk)) <= 8
    for file, name in stations(walk):
        source = inspect.getsourcefile(inspect.unwrap(find(file, name)))  # type: ignore[arg-type]
        assert source == str(SRC / file), f"{name} is not defined in {file}"


def entered(action: Callable[[], object]) -> list[tuple[str, str]]:
    """(file, qualified name) of our functions that an action calls, in the order of first calls."""
    calls: dict[tuple[str, str], None] = {}

    def profile(frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SRC)):
            calls.setdefault((code.co_filename.removeprefix(f"{SRC}/"), code.co_qualname))

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return list(calls)


def follow(action: Callable[[], object], expected: list[tuple[str, str]]) -> None:
    """The action enters all these stations, in this order."""
    calls = entered(action)
    missing = [station for station in expected if station not in calls]
    assert missing == []
    assert sorted(expected, key=calls.index) == expected


def test_a_step_of_a_convolution_passes_the_stations_of_its_walk():
    model = bc.quantize_model(nn.Sequential(nn.Conv2d(2, 3, 3)), kernel="native")
    bc.set_precision(model, "FW4/BW8")
    x = torch.randn(2, 2, 6, 6, requires_grad=True)
    follow(lambda: model(x).sum().backward(), stations("step"))  # on a CPU all in this thread


def test_a_schedule_passes_the_stations_of_its_walk_and_ends_as_level_counts():
    model = bc.quantize_model(nn.Sequential(nn.Linear(4, 2)))
    text = re.search(r"A schedule, from the text `(.+?)`", TEXT)[1]

    def schedule_bits():
        schedule = bc.parse_schedule(text)
        bc.PrecisionScheduler(model, forward=schedule, backward=8, total_steps=12)

    follow(schedule_bits, stations("schedule"))
    assert model[0].control[LEVELS["weight"]] == 2**3 - 1
    assert model[0].control[LEVELS["error"]] == 2**8 - 1


def command_before(walk: str) -> list[str]:
    """The words of the command that a walk follows."""
    sentence = {"run": "A training run, ", "study": "A study, "}[walk]
    return re.search(rf"{sentence}`bitcycle (.+?)`", TEXT)[1].split()


def test_a_run_passes_the_stations_of_its_walk(tmp_path):
    changes = ["--steps", "40", "--output", str(tmp_path), "--quiet", "--checkpoint.every", "20"]
    follow(lambda: main([*command_before("run"), *changes]), stations("run"))


@pytest.mark.slow
def test_a_study_passes_the_stations_of_its_walk_but_the_last_in_its_own_process(tmp_path):
    changes = ["--steps", "40", "--seeds", "0", "--output", str(tmp_path), "--quiet"]
    *own, last = stations("study")
    follow(lambda: main([*command_before("study"), *changes]), own)
    assert find(*last) is base.train_run
    assert list(tmp_path.rglob("result.json"))  # the workers trained


def test_the_last_station_of_a_study_is_what_its_workers_call(monkeypatch):
    monkeypatch.setattr(local, "_stop_without_parent", lambda: None)
    monkeypatch.setattr(local, "keep_freed_memory", lambda: None)
    seen = []

    def train_run(config, plugins):
        seen.append(config)
        return base.RunOutcome(name="a run", state="done")

    assert local.train_run is find(*stations("study")[-1])
    monkeypatch.setattr(local, "train_run", train_run)
    configs = iter(["a configuration"])

    def recv():
        for config in configs:
            return config
        raise EOFError

    local._work(SimpleNamespace(recv=recv, send_bytes=lambda data: None))
    assert seen == ["a configuration"]
