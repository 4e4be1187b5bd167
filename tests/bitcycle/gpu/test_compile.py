"""Every kernel compiles for every target without a GPU, rounds by IEEE, and does not spill."""

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter does not compile", allow_module_level=True)

from benchmarks.gpu_kernels import MODULES, TARGETS, build, launches

DIVIDES = {
    "encode", "fold", "lay_out", "round_in_blocks", "observe", "centre", "fold_weight", "combine",
    "encode_scaled",
}  # fmt: skip
ALL_LAUNCHES = "sm_90"  # other targets: the first of each kernel, which needs most
MATRIX = {  # the instructions that multiply int8
    "sm_80": "IMMA", "sm_89": "IMMA", "sm_90": "IGMMA", "sm_100": "UTCIMMA",
    "gfx942": "i32_32x32x16_i8",
}  # fmt: skip


@pytest.fixture(scope="module")
def made():
    return launches()


def is_product(launch):
    return launch.name.startswith("multiply")


def for_target(made, target):
    first = {launch.name: name for name, launch in reversed(made.items())}
    return made if target == ALL_LAUNCHES else {name: made[name] for name in first.values()}


def test_every_kernel_is_among_those_that_are_compiled(made):
    kernels = set()
    for module in MODULES:
        text = Path(module.__file__).read_text(encoding="utf-8")
        kernels |= set(re.findall(r"launch\(\s*_(\w+),", text))
    assert {launch.name for launch in made.values()} == kernels
    folder = Path(MODULES[0].__file__).parent
    users = {path.stem for path in folder.glob("*.py") if "launch(\n" in path.read_text("utf-8")}
    assert users == {module.__name__.rpartition(".")[2] for module in MODULES}


@pytest.mark.slow
@pytest.mark.parametrize("target", list(TARGETS))
def test_kernels_compile_round_by_ieee_do_not_spill_and_multiply_on_tensor_cores(made, target):
    for name, launch in for_target(made, target).items():
        needs = build(launch, TARGETS[target])
        assert needs.spilled == 0, name
        assert set(needs.matrix) == ({MATRIX[target]} if is_product(launch) else set()), name
        if target.startswith("sm_"):
            assert not re.search(r"\bfma\.|\.ftz|div\.full|div\.approx", needs.code), name
            if launch.name in DIVIDES and "mx" not in name:  # whose scales are powers of two
                assert "div.rn.f32" in needs.code, name
