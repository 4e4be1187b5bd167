"""Every example runs as its reader would run it."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.forking import run_script

EXAMPLES = Path(__file__).parents[1] / "examples"
PAIRS = [("plain_loop.py", "plain_loop_cpt.py")] + [
    (f"{package}_before.py", f"{package}_after.py")
    for package in ("accelerate", "lightning", "transformers")
]
PAIRED = [name for pair in PAIRS for name in pair]
SLOW = ("accelerate", "lightning", "transformers")  # to import


@functools.cache
def output_of(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        done = run_script(EXAMPLES / name, Path(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({path.name for path in EXAMPLES.glob("*.py")} - {*PAIRED}))
def test_an_example_runs_and_says_something(name):
    assert output_of(name).strip()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name.startswith(SLOW) else [])
        for name in PAIRED
    ],
)
def test_both_of_a_pair_learn(name):
    found = re.search(r"test accuracy (\d+\.\d) %", output_of(name))
    assert found is not None
    assert float(found[1]) > 90  # chance is 10, or 50


def test_the_own_task_learns_in_float32_and_at_low_precision():
    errors = re.findall(r"^(\w+) +mean absolute error (\d+\.\d)", output_of("own_task.py"), re.M)
    assert [name for name, _ in errors] == ["float32", "cpt"]
    assert all(float(error) < 50 for _, error in errors)  # predicting the mean: 60.8


def test_the_own_quantizer_learns():
    found = re.findall(r"^(\w+) +test accuracy (\d+\.\d) %", output_of("own_quantizer.py"), re.M)
    assert [name for name, _ in found] == ["sbm", "three_sigma"]
    assert all(float(accuracy) > 80 for _, accuracy in found)


@pytest.mark.slow
def test_a_hugging_face_model_learns_in_nvfp4_and_heals():
    output = output_of("transformers_nvfp4.py")
    assert float(re.search(r"test loss (\d+\.\d+)", output)[1]) < 0.3  # of one word: 3.47
    weights = [float(bits) for bits in re.findall(r"'bits/forward': '(\d+\.?\d*)'", output)]
    errors = [float(bits) for bits in re.findall(r"'bits/backward': '(\d+\.?\d*)'", output)]
    assert weights[0] < 8  # a mean over layers: the head and the last block are in bf16
    assert weights[-1] == 16
    assert set(errors) == {weights[0]}


@pytest.mark.slow
def test_the_own_quantizer_keeps_every_contract():
    """Loaded as a plugin it is registered before the contract tests ask for quantizers."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "own_quantizer", "-p", "no:cacheprovider",
         "tests/bitcycle/contracts/test_quantizers.py", "tests/bitcycle/contracts/test_layers.py",
         "-k", "three_sigma"],
        cwd=EXAMPLES.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 30
