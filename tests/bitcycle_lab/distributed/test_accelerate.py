"""A run where Accelerate is configured for FSDP."""

from __future__ import annotations

import pytest

from bitcycle_lab.train import run
from bitcycle_lab.train.config_file import from_dict
from tests.bitcycle.distributed.launch import run_together

pytest.importorskip("accelerate")


def run_under_fsdp(folder: str) -> str:
    """The error of a run in a process that is set up for FSDP."""
    from tests.bitcycle.distributed.test_accelerate import make_accelerator

    make_accelerator("fsdp2")
    config = from_dict({"model": {"name": "digits_mlp"}, "steps": 2, "output": folder})
    try:
        run(config)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_run_refuses_fsdp_with_the_way_out(tmp_path):
    for said in run_together(run_under_fsdp, 2, tmp_path, has_group=False, folder=str(tmp_path)):
        assert "accelerate is configured for FSDP" in said
        assert "torchrun" in said
