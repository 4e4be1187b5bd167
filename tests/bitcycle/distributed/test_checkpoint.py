"""`torch.distributed.checkpoint`: saved by some number of processes, loaded by another."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

import bitcycle as bc
from tests.bitcycle.distributed.launch import run_together
from tests.bitcycle.distributed.training import EXACT, Run
from tests.bitcycle.toys import linears

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
PLATEAU = "plateau:3-8:window=1:patience=0:threshold=0.5"


def state_of(run: Run) -> dict[str, Any]:
    model, optimizer = get_state_dict(run.model, run.optimizer)
    return {"model": model, "optimizer": optimizer, "bits": run.bits, "cost": run.meter}


def save(run: Run, folder: str) -> None:
    dcp.save(state_of(run), checkpoint_id=folder)


def load(run: Run, folder: str) -> None:
    state = state_of(run)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        run.model,
        run.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )


def begin(way: str, folder: str, **options: Any) -> dict[str, Any]:
    """Train half, save, train on."""
    run = Run(way, total_steps=12, **options)
    run.train(5)
    save(run, folder)
    half = run.report()
    run.train(7)
    return {"half": half, "whole": run.report()}


def resume_from(way: str, folder: str, **options: Any) -> dict[str, Any]:
    """Load into a new run, train on."""
    run = Run(way, total_steps=12, **options)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.zero_()
    load(run, folder)
    half = run.report()
    assert run.bits.step_count == 5
    run.train(7)
    return {"half": half, "whole": run.report()}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
@pytest.mark.parametrize("forward", ["CR:3-8:2", PLATEAU])
def test_two_processes_resume_to_the_bit(tmp_path, way, forward):
    options = {"way": way, "folder": str(tmp_path / "state"), "forward": forward, "quantizer": {}}
    first = run_together(begin, 2, tmp_path, **options)
    second = run_together(resume_from, 2, tmp_path, **options)
    for old, new in zip(first, second, strict=True):
        assert new["half"]["weights"] == old["half"]["weights"]
        assert new["whole"]["weights"] == old["whole"]["weights"]
        assert new["whole"]["bitops"] == old["whole"]["bitops"]
        assert new["whole"]["bits"] == old["whole"]["bits"][5:]
        assert new["whole"]["loss"] == old["whole"]["loss"][5:]


@pytest.mark.slow
@pytest.mark.parametrize(("saved_by", "loaded_by"), [(2, 1), (1, 2)])
def test_another_number_of_processes_resumes(tmp_path, saved_by, loaded_by):
    """State and bits are exact; what follows is equal but for the order of sums."""
    ways = {1: {"way": "plain", "has_group": False}, 2: {"way": "fsdp2"}}
    options = {"folder": str(tmp_path / "state"), "quantizer": EXACT, "dtype": "float64",
               "kernel": "simulate"}  # fmt: skip
    old = run_together(begin, saved_by, tmp_path, **ways[saved_by], **options)[0]
    for new in run_together(resume_from, loaded_by, tmp_path, **ways[loaded_by], **options):
        assert new["half"]["weights"] == old["half"]["weights"]
        assert new["half"]["ranges"] == old["half"]["ranges"]
        assert new["whole"]["bits"] == old["whole"]["bits"][5:]
        assert new["whole"]["bitops"] == old["whole"]["bitops"]
        assert new["whole"]["loss"] == pytest.approx(old["whole"]["loss"][5:], rel=1e-11)


class PlainValues(DefaultLoadPlanner):
    """Loads what is not a tensor without unpickling any class."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        torch.load(value, weights_only=True)
        value.seek(0)
        super().load_bytes(read_item, value)


def test_what_is_saved_beside_tensors_are_plain_values(tmp_path):
    model = bc.quantize_model(linears(8, 8, 8))
    bits = bc.PrecisionScheduler(model, forward={"*": PLATEAU, "1": 8}, total_steps=12)
    meter = bc.CostMeter(model, torch.zeros(2, 8))
    assert isinstance(bits, Stateful)
    assert isinstance(meter, Stateful)
    for loss in (3.0, 2.9, 2.8):
        bits.step(loss)
        meter.step()
    expected, bitops = bits.state_dict(), meter.bitops
    dcp.save({"bits": bits, "cost": meter}, checkpoint_id=tmp_path)
    bits.load_state_dict({**expected, "step_count": 0})
    meter.step()
    reader = FileSystemReader(tmp_path)
    dcp.load({"bits": bits, "cost": meter}, storage_reader=reader, planner=PlainValues())
    assert bits.state_dict() == expected
    assert meter.bitops == bitops


def test_another_schedule_is_a_warning_not_a_missing_key(tmp_path):
    def scheduler(forward: Any) -> bc.PrecisionScheduler:
        model = bc.quantize_model(linears(8, 8, 8))
        return bc.PrecisionScheduler(model, forward=forward, total_steps=6)

    dcp.save({"bits": scheduler(8)}, checkpoint_id=tmp_path)
    with pytest.warns(bc.BitcycleWarning, match="schedules"):
        dcp.load({"bits": scheduler({"*": 8, "1": 4})}, checkpoint_id=tmp_path)
