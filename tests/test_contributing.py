"""The tree and the walks of CONTRIBUTING.md are those of the source."""

import ast
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

import bitcycle as bc
import bitcycle_lab as lab
from bitcycle_lab.recipes import recipe
from bitcycle_lab.train import CheckpointConfig
from tests.test_layering import imports_of, part_of

PACKAGE = Path(bc.__file__).parent
CATALOGUE = "formats.catalogue"  # a helper that lies in a folder of its own
TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def block_after(sentence: str) -> list[str]:
    """The lines of the text block that follows a sentence or heading."""
    match = re.search(re.escape(sentence) + r".*?```text\n(.*?)```", TEXT, re.DOTALL)
    assert match, sentence
    return match[1].splitlines()


WALKS = {
    "run": block_after("A training run"),
    "convolution": block_after("A converted convolution"),
    "study": block_after("A study"),
}


def stations(walk: str) -> list[tuple[str, str]]:
    """(file, name) of every line."""
    return [tuple(line.split()[:2]) for line in WALKS[walk]]  # type: ignore[misc]


def find(file: str, name: str) -> object:
    thing: object = import_module("bitcycle." + file.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def tree() -> list[str]:
    """The packages and files of the tree, in its order."""
    lines = [line for line in block_after("## The tree") if line.startswith("  ")]
    words = [re.split(r"\s{3,}", line.strip())[0].split("  ") for line in lines]
    return [word.strip().removesuffix("/") for names in words for word in names]


def test_the_tree_has_every_package_and_file_of_the_top_level():
    packages = {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    files = {p.stem for p in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert sorted(tree()) == sorted(packages | files)


def test_a_file_imports_only_files_above_it_in_the_tree():
    parts = tree()
    wrong = []
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]):
        if (part := part_of(path)) not in parts:  # __init__ and __main__
            continue
        package = ".".join(["bitcycle", *path.relative_to(PACKAGE).parts[:-1]])
        imported = imports_of(ast.parse(path.read_text(encoding="utf-8")), package)
        helpers = f"bitcycle.{CATALOGUE}."
        below = {
            name.split(".")[1]
            for name in imported
            if name.startswith("bitcycle.") and not name.startswith(helpers)
        }
        wrong += [(part, name) for name in below if name in parts[parts.index(part) + 1 :]]
    assert wrong == []


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_names_what_is_there(walk):
    for file, name in stations(walk):
        source = inspect.getsourcefile(inspect.unwrap(find(file, name)))  # type: ignore[arg-type]
        assert source == str(PACKAGE / file), f"{name} is not defined in {file}"


def entered(action: Callable[[], object]) -> list[tuple[str, str]]:
    """(file, qualified name) of the functions of the package, in the order of their first call."""
    calls: dict[tuple[str, str], None] = {}

    def profile(frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            calls[str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname] = None

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return list(calls)


def test_the_convolution_passes_the_stations_of_its_walk_in_this_order():
    model = bc.quantize_model(nn.Sequential(nn.Conv2d(2, 3, 3)), kernel="native")
    bc.set_precision(model, "FW4/BW8")
    x = torch.randn(2, 2, 6, 6, requires_grad=True)
    calls = entered(lambda: model(x).sum().backward())  # on a CPU all in this thread
    expected = stations("convolution")
    assert sorted(expected, key=calls.index) == expected
    assert not [file for file, _ in calls if "recurrent" in file]


def test_the_run_passes_the_stations_of_its_walk_after_the_command(tmp_path):
    checkpoint = CheckpointConfig(every=4)
    config = replace(
        recipe("digits-static-8-8"), steps=8, output=str(tmp_path), checkpoint=checkpoint
    )
    calls = entered(lambda: lab.run(config))
    for file, name in stations("run")[1:]:
        assert (file, name) in calls, f"{name} of {file} was not called"
