"""Things of your own: --import on the command line, entry points of installed packages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forking import run_command, run_script

ROOT = Path(__file__).parents[2]
# text, not a module of the tests: its registrations would reach every other test
OWN_THINGS = '''
"""A file for --import: a schedule, a quantizer, a model and a dataset of somebody's own."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bitcycle.bits import PlainBits
from bitcycle.quantizers import QUANTIZERS
from bitcycle.quantizers.sbm import SBM
from bitcycle.schedules.base import SCHEDULES, Ranged
from bitcycle_lab.data import ImageArrays, ImageSplits, Place, dataset
from bitcycle_lab.models import register_model
from bitcycle_lab.models.base import ImageModel


@SCHEDULES.register("own")
@dataclass(frozen=True, eq=False, repr=False)
class Own(Ranged):
    """Low bits and high bits in turn, a step each."""

    grammar: ClassVar[str] = ":levels"
    forms: ClassVar[tuple[str, ...]] = ("own:3-8",)

    def bits_at(self, step: int, total_steps: int) -> PlainBits:
        return self.high if step % 2 else self.low


@QUANTIZERS.register("own_rule")
@dataclass(frozen=True, kw_only=True)
class OwnRule(SBM):
    """SBM by another name."""


class OwnNet(ImageModel):
    """One linear layer."""

    def __init__(self, *, num_classes: int, in_channels: int) -> None:
        super().__init__(num_classes=num_classes, in_channels=in_channels, image_size=4)
        self.fc = nn.Linear(16 * in_channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(images.flatten(1))


@register_model()
def own_net(*, num_classes: int = 2, in_channels: int = 1) -> OwnNet:
    """A linear layer for 4x4 images."""
    return OwnNet(num_classes=num_classes, in_channels=in_channels)


@dataset(
    name="own_data",
    kind="image",
    description="noise in two brightnesses",
    num_classes=2,
    input_shape=(1, 4, 4),
    layout="nothing",
    source="made when it is loaded",
    needs_root=False,
)
def load_own(place: Place) -> ImageSplits:
    targets = torch.arange(60) % 2
    noise = torch.randint(0, 100, (60, 1, 4, 4), generator=torch.Generator().manual_seed(0))
    pixels = (noise + 100 * targets.view(-1, 1, 1, 1)).to(torch.uint8)

    def part(chosen: slice) -> ImageArrays:
        return ImageArrays(pixels=pixels[chosen], targets=targets[chosen], mean=(0.5,), std=(0.5,))

    return ImageSplits(train=part(slice(0, 40)), test=part(slice(40, None)), num_classes=2)
'''
TRAIN = [
    "train", "own.yaml", "--quiet", "--precision.forward", "own:4-8", "--precision.backward", "8",
]  # fmt: skip
CONFIG = """
name: mine
model: {name: own_net}
data: {name: own_data, batch_size: 16}
precision: {quantizer: own_rule}
checkpoint: {every: 2}
tracking: {tensorboard: false}
steps: 4
threads: 1
"""
STUDY = """
name: two
seeds: 2
base:
  model: {name: own_net}
  data: {name: own_data, batch_size: 16}
  tracking: {tensorboard: false}
  steps: 4
methods:
  own: {precision.forward: "own:4-8", precision.backward: 8, precision.quantizer: own_rule}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own_things.py").write_text(OWN_THINGS, encoding="utf-8")
    (tmp_path / "own.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def python(folder, *arguments, **environment):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def script(folder, code):
    path = folder / "script.py"
    path.write_text(code, encoding="utf-8")
    return run_script(path, folder)


def bitcycle(folder, *arguments):
    return run_command(arguments, folder)


def test_a_file_may_be_named_by_any_path_to_it(folder):
    (folder / "link").symlink_to(folder)
    for path in ("link/own_things.py", f"../{folder.name}/own_things.py"):
        code = f"""
import sys
sys.path.insert(0, {str(folder)!r})
from bitcycle_lab.cli.main import main
sys.exit(main(["ls", "schedules", "--import", {path!r}]))
"""
        done = script(folder, code)
        assert done.returncode == 0, done.stderr
    (folder / "own_things.py").rename(folder / "own.things.py")
    done = bitcycle(folder, "ls", "schedules", "--import", "own.things.py")
    assert done.returncode == 2
    assert "'own.things'" in done.stderr


def test_every_list_shows_what_a_file_registers(folder):
    code = """
from bitcycle_lab.cli.main import main
for kind in ("schedules", "quantizers", "models", "datasets"):
    assert main(["ls", kind, "--import", "own_things.py"]) == 0
"""
    done = script(folder, code)
    assert done.returncode == 0, done.stderr
    for row in (
        r"own +\S+ +own:3-8 +Low bits and high bits in turn, a step each",
        r"own_rule +SBM by another name",
        r"own_net +image +A linear layer for 4x4 images",
        r"own_data +image +noise in two brightnesses; files: nothing",
    ):
        assert re.search(rf"^{row}$", done.stdout, re.MULTILINE), row


def test_a_run_of_things_of_your_own_is_trained_and_resumed_by_the_same_option(folder):
    done = bitcycle(folder, "--import", "own_things.py", *TRAIN)
    assert done.returncode == 0, done.stderr
    run = folder / "runs" / "mine-seed0"
    file = str(folder / "own_things.py")
    assert json.loads((run / "env.json").read_text())["imports"] == [file]
    (run / "result.json").unlink()
    missing = bitcycle(folder, "resume", str(run))  # the folder names the file, and is not obeyed
    assert missing.returncode == 2
    [line] = missing.stderr.splitlines()
    assert "own" in line
    assert f"--import {file}" in line
    resumed = bitcycle(folder, "resume", str(run), "--import", "own_things.py")
    assert resumed.returncode == 0, resumed.stderr
    assert "accuracy" in resumed.stdout


@pytest.mark.slow
def test_the_workers_of_a_study_receive_it(folder):
    (folder / "study.yaml").write_text(STUDY, encoding="utf-8")
    options = ("--jobs", "1", "--quiet", "--import", "own_things.py")
    done = bitcycle(folder, "study", "run", "study.yaml", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(folder.glob("runs/*/result.json"))) == 2


@pytest.mark.parametrize("key", ["import", "imports", "plugins"])
def test_no_file_can_ask_for_an_import(folder, key):
    (folder / "evil.py").write_text("open('executed', 'w')", encoding="utf-8")
    (folder / "run.yaml").write_text(f"steps: 1\n{key}: evil.py\n", encoding="utf-8")
    (folder / "study.yaml").write_text(f"{STUDY}{key}: evil.py\n", encoding="utf-8")
    code = """
from bitcycle_lab.cli.main import main
assert main(["train", "run.yaml"]) == 2
assert main(["study", "status", "study.yaml"]) == 2
"""
    done = script(folder, code)
    assert done.returncode == 0, done.stderr
    assert key in done.stderr
    assert not (folder / "executed").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no such file"),
        ("1 +", "SyntaxError"),
        ("raise KeyError('lost')", "KeyError: 'lost'"),
        ("from bitcycle_lab.models import register_model\n"
         "@register_model()\ndef resnet20(): pass\nimport bitcycle_lab.models.cifar_resnet",
         "registered already"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_imported_is_one_line(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "mine.py").write_text(content, encoding="utf-8")
    done = bitcycle(tmp_path, "ls", "models", "--import", "mine.py")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "mine.py" in line
    assert reason in line


def test_a_file_is_imported_once_finds_its_neighbours_and_hides_no_other_module(tmp_path):
    (tmp_path / "near.py").write_text("print('near')", encoding="utf-8")
    (tmp_path / "mine.py").write_text("import near; print('mine')", encoding="utf-8")
    (tmp_path / "json.py").write_text("print('not json')", encoding="utf-8")
    code = """
from bitcycle_lab.plugins import import_plugins, imported_plugins
import_plugins(["mine.py", "mine.py", "./mine.py", "string"])
import mine
print(len(imported_plugins()))
import_plugins(["json.py"])
"""
    done = python(tmp_path, "-P", "-c", code)
    assert done.stdout.split() == ["near", "mine", "2"], done.stderr
    assert "json" in done.stderr.splitlines()[-1]


def install(folder, name, entry, content):
    """A package with an entry point, as pip would leave it."""
    (folder / f"{name}.py").write_text(content, encoding="utf-8")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[bitcycle.plugins]\n{name} = {entry}\n")


def test_an_installed_package_registers_by_an_entry_point(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    install(site, "own_package", "own_package", OWN_THINGS)
    install(site, "broken_package", "broken_package", "import no_such_module")
    code = """
import sys, warnings
import bitcycle as bc
with warnings.catch_warnings():
    warnings.simplefilter("error")
    bc.quantizers.QUANTIZERS["sbm"]
    assert "own_package" not in sys.modules  # what is here needs no plugin
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert bc.parse_schedule("own:3-8").values(3) == [3, 8, 3]
    bc.parse_schedule("own:4-8")
[warning] = [each for each in caught if each.category.__name__ == "BitcycleWarning"]
assert "broken_package" in str(warning.message)
assert "no_such_module" in str(warning.message)
from bitcycle_lab.cli.main import main
main(["ls", "models"])
"""
    done = python(tmp_path, "-c", code, PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{site}")
    assert done.returncode == 0, done.stderr
    assert "own_net " in done.stdout
