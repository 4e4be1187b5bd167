"""Imports are cheap: neither package loads torch or an extra until a name is asked for."""

import ast
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import bitcycle
import bitcycle.formats
import bitcycle_lab
import bitcycle_lab.study
import bitcycle_lab.tasks
import bitcycle_lab.train
from tests.test_layering import OTHERS

EXTRAS = sorted({*OTHERS, "torchvision", "scipy", "pandas", "docstring_parser"})
LAZY = (
    bitcycle, bitcycle.formats, bitcycle_lab, bitcycle_lab.study, bitcycle_lab.tasks,
    bitcycle_lab.train,
)  # fmt: skip


def run(code):
    """What a fresh interpreter prints as JSON in its last line."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


COMMANDS = """
import json, sys
from bitcycle_lab.cli.main import main
import bitcycle, bitcycle_lab
codes = [main(words) for words in (
    ["--help"], ["--version"], ["train", "--help"], ["schedule", "CR:3-8:8"],
    ["ls", "schedules"], ["ls", "recipes"], ["ls", "runs"],
)]
print()
print(json.dumps([codes, sorted(sys.modules)]))
"""


def test_commands_that_only_tell_import_neither_torch_nor_numpy():
    codes, loaded = run(COMMANDS)
    assert codes == [0] * 7
    packages = {name.split(".")[0] for name in loaded}
    assert packages & {*EXTRAS, "torch", "numpy"} <= {"yaml"}  # recipes are YAML


@pytest.mark.slow
def test_the_core_works_without_any_extra():
    code = f"""
import json, sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))  # None: as if not installed
import torch, bitcycle as bc
from bitcycle.nn import LAYERS
from bitcycle.quantizers import QUANTIZERS
model = bc.quantize_model(torch.nn.Sequential(torch.nn.Linear(4, 2)))
bits = bc.PrecisionScheduler(model, forward="CR:3-8:1", backward=8, total_steps=6)
model(torch.ones(2, 4)).sum().backward()
bits.step()
assert bc.convert is sys.modules["bitcycle.convert"]  # a submodule, imported or not
assert bc.export.export_model
names = [len(LAYERS.names()), len(QUANTIZERS.names()), len(bc.list_schedules())]
missing = [name for name in bc.__all__ if not hasattr(bc, name)]
print(json.dumps([names, missing]))
"""
    counts, missing = run(code)
    assert all(count > 0 for count in counts)
    assert missing == []


@pytest.mark.slow
def test_layers_of_other_packages_are_listed_without_importing_them():
    """And a function with the name of its file is the function, imported in whatever order."""
    code = """
import contextlib, io, json, sys
import bitcycle.audit, bitcycle_lab.train.run
import bitcycle as bc, bitcycle_lab as lab
from bitcycle_lab.cli.main import main
with contextlib.redirect_stdout(io.StringIO()) as shown:
    main(["ls", "layers"])
found = {name.split(".")[0] for name in sys.modules} & {"transformers", "torch_geometric"}
are_functions = [callable(bc.audit), callable(lab.train.run), lab.run is lab.train.run]
print(json.dumps([sorted(found), shown.getvalue(), are_functions]))
"""
    imported, shown, are_functions = run(code)
    assert imported == []
    assert "transformers.pytorch_utils.Conv1D" in shown
    assert all(are_functions)


def test_a_lazy_package_can_be_pickled_as_cloudpickle_does():
    assert pickle.loads(pickle.dumps(bitcycle_lab.train)) is bitcycle_lab.train


@pytest.mark.parametrize("package", LAZY, ids=lambda package: package.__name__)
def test_a_lazy_package_has_every_name_of_its_stub_and_no_other(package):
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    aliases = [a for node in stub.body if isinstance(node, ast.ImportFrom) for a in node.names]
    assert len(aliases) > 0
    assert sorted(package.__all__) == sorted(alias.asname or alias.name for alias in aliases)
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in dir(package)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


@pytest.mark.parametrize("package", LAZY, ids=lambda package: package.__name__)
def test_dir_shows_public_names_only(package):
    assert dir(package) == sorted(package.__all__)
