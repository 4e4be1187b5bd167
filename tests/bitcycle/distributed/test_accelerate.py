"""Scripts with Accelerate in two processes: DDP, and FSDP2 by its plugin."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import bitcycle as bc
from tests.bitcycle.distributed.launch import run_together
from tests.bitcycle.distributed.training import Block, digest, perceptron, whole
from tests.bitcycle.toys import randn

accelerate = pytest.importorskip("accelerate")
STEPS = 8
ROOT = Path(__file__).parents[3]


def make_accelerator(way: str, **options: Any) -> Any:
    if way == "ddp":
        return accelerate.Accelerator(cpu=True)
    # accelerate offers FSDP on GPUs only, and takes DDP on a CPU without a word: told that this is
    # a GPU it does all it does there, over gloo
    state = accelerate.PartialState(cpu=True)
    assert state.distributed_type is accelerate.DistributedType.MULTI_CPU
    state._shared_state["distributed_type"] = accelerate.DistributedType.MULTI_GPU
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        **options,
    )
    return accelerate.Accelerator(cpu=True, fsdp_plugin=plugin)


def script(way: str, folder: str, starts_from: str | None = None) -> dict[str, Any]:
    """As a user writes it; resumes from a state if there is one."""
    accelerator = make_accelerator(way)
    model = bc.quantize_model(perceptron(), bc.quantizers.SBM(sync_ranges=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = randn(STEPS * 16, 8)
    batches = DataLoader(TensorDataset(x, (x[:, :4] * x[:, 4:]).argmax(1)), batch_size=8)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    bits = bc.PrecisionScheduler(model, forward="CR:3-8:2", backward=8, total_steps=STEPS)
    accelerator.register_for_checkpointing(bits)
    first = 0
    if starts_from is not None:
        accelerator.load_state(starts_from)
        first = bits.step_count
    losses, seen = [], []
    for number, (inputs, labels) in enumerate(batches):
        if number < first:
            continue
        loss = F.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(str(bits.precision))
        losses.append(loss.item())
        bits.step()
        if number == 3 and starts_from is None:
            accelerator.save_state(folder)
    kinds = {"ddp": DistributedDataParallel, "fsdp2": FSDPModule}
    return {
        "is_wrapped": isinstance(model, kinds[way]),
        "num_wrapped": sum(isinstance(m, FSDPModule) for m in model.modules()),
        "loss": losses,
        "bits": seen,
        "weights": digest(whole(p) for p in model.parameters()),
        "ranges": digest(b for n, b in model.named_buffers() if n.endswith("act_range")),
    }


def run_script(way: str, tmp_path: Any, **options: Any) -> list[dict[str, Any]]:
    arguments = {"way": way, "folder": str(tmp_path / way), **options}
    return run_together(script, 2, tmp_path, has_group=False, **arguments)


@pytest.mark.slow
def test_fsdp2_by_its_plugin_trains_to_the_bit_what_ddp_trains(tmp_path):
    ddp, fsdp = run_script("ddp", tmp_path), run_script("fsdp2", tmp_path)
    assert all(run["is_wrapped"] for run in (*ddp, *fsdp))
    assert [run["num_wrapped"] for run in fsdp] == [3, 3]  # two blocks and the rest
    for one, other in zip(ddp, fsdp, strict=True):
        assert one["loss"] == other["loss"]
        assert one["weights"] == other["weights"]
        assert one["bits"] == other["bits"]
        assert one["ranges"] == other["ranges"]
    assert ddp[0]["weights"] == ddp[1]["weights"]
    assert len(set(ddp[0]["bits"])) > 3


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_a_saved_state_resumes_to_the_bit(tmp_path, way):
    first = run_script(way, tmp_path)
    second = run_script(way, tmp_path, starts_from=str(tmp_path / way))
    for old, new in zip(first, second, strict=True):
        assert new["loss"] == old["loss"][4:]
        assert new["bits"] == old["bits"][4:]
        assert new["weights"] == old["weights"]


def follow_the_example() -> list[Any]:
    """examples/accelerate_after.py as it is."""
    names = runpy.run_path(str(ROOT / "examples" / "accelerate_after.py"))
    return [
        isinstance(names["model"], DistributedDataParallel),
        names["bits"].finished,
        names["accuracy"],
        digest(names["model"].parameters()),
    ]


@pytest.mark.slow
def test_the_example_learns_in_two_processes(tmp_path):
    first, second = run_together(follow_the_example, 2, tmp_path, has_group=False)
    assert first[:2] == [True, True]
    assert first[2] > 0.8  # of ten digits; how far it gets depends on the processor
    assert first[3] == second[3]


def load_sparingly() -> str:
    """`cpu_ram_efficient_loading` with a float model that has any persistent buffer."""
    accelerator = make_accelerator("fsdp2", cpu_ram_efficient_loading=True)
    model = nn.Sequential(Block(4), nn.BatchNorm1d(4))
    try:
        accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    except AttributeError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_accelerates_sparing_load_knows_no_buffers(tmp_path):
    """Its own limit, which docs/scale.md names: ranges are buffers, as BatchNorm's statistics."""
    for said in run_together(load_sparingly, 2, tmp_path, has_group=False):
        assert "device_mesh" in said
