"""Formats on tensor cores, where torch is older than they are."""

import subprocess
import sys

OLDER = """
import torch
import torch._dynamo, torch._inductor.utils  # of this torch, which has all dtypes

for module, names in (
    (torch.nn.functional, ("scaled_mm", "ScalingType", "SwizzleType")),
    (torch, ("float4_e2m1fn_x2", "float8_e8m0fnu")),
):
    for name in names:
        delattr(module, name)

import bitcycle as bc
from bitcycle.kernels.scaled import reason_against

for name in ("fp8", "mx", "nvfp4"):
    model = bc.quantize_model(torch.nn.Sequential(torch.nn.Linear(32, 8)), name)
    bits = {"mx": "mxfp8"}.get(name, name)
    bc.set_precision(model, f"FW{bits}/BW{bits}")
    model(torch.ones(2, 32)).sum().backward()
assert reason_against("nvfp4", "sm_100") == "this torch has no scaled_mm"
"""


def test_a_torch_without_scaled_mm_trains_in_formats():
    subprocess.run([sys.executable, "-c", OLDER], check=True)
