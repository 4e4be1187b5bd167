"""The tests of `interpreted`, in processes of their own.

Triton reads TRITON_INTERPRET when it is imported. Without the native library, kernels are compared
with plain torch.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.slow  # the interpreter takes half a minute for each file

FOLDER = Path(__file__).parent / "interpreted"
ROOT = FOLDER.parents[3]


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("test_*.py")))
def test_kernels_equal_plain_torch_in_the_interpreter(name):
    env = {**os.environ, "TRITON_INTERPRET": "1", "BITCYCLE_NATIVE": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", FOLDER / name]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
