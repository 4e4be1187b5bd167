"""Optional dependencies are named with their install command when missing."""

import ast
import json
import re
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

from bitcycle.extras import MissingExtraError, require

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_LIBRARY = {"export", "gpu", "lightning", "transformers"}
OF_LABORATORY = {"train", "report", "cluster", "graph"}


def test_a_module_that_is_there_is_returned():
    assert require("json", extra="train", purpose="settings") is json


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_a_missing_package_names_the_purpose_and_the_install_command(module):
    with pytest.raises(MissingExtraError) as caught:
        require(module, extra="report", purpose="pictures")
    assert isinstance(caught.value, ImportError)
    assert f"pictures need {module!r}" in str(caught.value)
    assert 'pip install ".[report]"' in str(caught.value)


def test_a_package_that_is_there_but_broken_shows_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as caught:
        require("half_installed", extra="report", purpose="pictures")
    assert not isinstance(caught.value, MissingExtraError)


# ---- pyproject.toml ----------------------------------------------------------------------------


def names_of(requirements):
    """The names of packages, as in an index."""
    words = (re.match(r"[\w.-]+", line)[0] for line in requirements)
    return {word.lower().replace("_", "-") for word in words}


def required(package):
    """(file, module, extra) of every `require` whose module and extra are written out."""
    for path in sorted((ROOT / "src" / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "require":
                continue
            extras = [each.value for each in node.keywords if each.arg == "extra"]
            values = [*node.args[:1], *extras]
            if all(isinstance(value, ast.Constant) for value in values):
                module, extra = (value.value for value in values)
                yield path.relative_to(ROOT).as_posix(), module, extra


@pytest.mark.parametrize(
    ("package", "extras"),
    [("bitcycle", OF_LIBRARY), ("bitcycle_lab", OF_LIBRARY | OF_LABORATORY)],
)
def test_the_extra_in_an_error_has_the_package(package, extras):
    distributions = packages_distributions()
    found = list(required(package))
    assert found
    for file, module, extra in found:
        assert extra in extras, file
        direct = names_of(EXTRAS[extra])
        if package == "bitcycle_lab":  # tokenizers come with transformers
            direct |= names_of(line for name in direct for line in requires(name) or ())
        wanted = names_of(distributions[module.partition(".")[0]])
        assert wanted & direct, (file, module, extra)


def test_the_core_needs_torch_and_numpy_only():
    assert names_of(PROJECT["dependencies"]) == {"torch", "numpy"}


def test_all_has_every_extra_of_users_except_triton_which_torch_brings():
    assert set(EXTRAS) == OF_LIBRARY | OF_LABORATORY | {"all", "docs", "dev"}
    (everything,) = EXTRAS["all"]
    named = set(re.fullmatch(r"bitcycle\[(.*)\]", everything)[1].split(","))
    assert named == (OF_LIBRARY | OF_LABORATORY) - {"gpu"}
