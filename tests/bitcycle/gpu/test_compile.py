"""Every kernel compiles for every target without a GPU, rounds by IEEE, and does not spill."""

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter does not compile", allow_module_level=True)

from benchmarks.gpu_kernels import TARGETS, build, launches
from bitcycle.gpu import blocks, centred, folds, grids

DIVIDES = {"encode", "encode_centred", "fold", "round_in_blocks", "observe"}


@pytest.fixture(scope="module")
def made():
    return launches()


def test_every_kernel_is_among_those_that_are_compiled(made):
    kernels = set()
    for module in (grids, centred, folds, blocks):
        text = Path(module.__file__).read_text(encoding="utf-8")
        kernels |= set(re.findall(r"launch\(\s*_(\w+),", text))
    assert {launch.name for launch in made.values()} == kernels


@pytest.mark.slow
@pytest.mark.parametrize("target", list(TARGETS))
def test_kernels_compile_round_by_ieee_and_do_not_spill(made, target):
    for name, launch in made.items():
        needs = build(launch, TARGETS[target])
        assert needs.spilled == 0, name
        if target.startswith("sm_"):
            assert not re.search(r"\bfma\.|\.ftz|div\.full|div\.approx", needs.code), name
            if launch.name in DIVIDES and "mx" not in name:  # whose scales are powers of two
                assert "div.rn.f32" in needs.code, name
