"""FSDP2 (`fully_shard`) with two processes: converted first, then sharded."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import bitcycle as bc
from tests.bitcycle.distributed.launch import run_together
from tests.bitcycle.distributed.training import (
    EXACT,
    Run,
    digest,
    perceptron,
    sharded,
    train,
    whole,
)
from tests.bitcycle.toys import randn

FULL = StateDictOptions(full_state_dict=True)


@pytest.mark.slow
@pytest.mark.parametrize("quantizer", [{}, EXACT], ids=["as published", "exact"])
def test_fsdp2_trains_to_the_bit_what_ddp_trains(tmp_path, quantizer):
    """Over steps whose bits change: no code of a weight outlives the weight."""
    options = {"num_steps": 12, "quantizer": quantizer}
    ddp = run_together(train, 2, tmp_path, way="ddp", **options)
    fsdp = run_together(train, 2, tmp_path, way="fsdp2", **options)
    for one, other in zip(ddp, fsdp, strict=True):
        assert one["loss"] == other["loss"]
        assert one["weights"] == other["weights"]
        assert one["bits"] == other["bits"]
        assert one["bitops"] == other["bitops"]


class Attention(nn.Module):
    """(N, T, 6) -> (N, T, 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class Recurrent(nn.Module):
    """(N, T, 6) -> (N, T, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Tied(nn.Module):
    """(N, T, 6) -> (N, T, 7): an embedding and the Linear that shares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x.argmax(-1)) + x)


MODELS: dict[str, Any] = {
    "linear": lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Conv1d(4, 5, 3), nn.ReLU(), nn.ConvTranspose1d(5, 3, 2)
    ),
    "attention": Attention,
    "recurrent": Recurrent,
    "tied": Tied,
}


def compare_layers(name: str) -> float:
    """The largest difference of weights, with the gathered ones freed after forward or not."""
    return max(compare(name, reshards) for reshards in (True, False))


def compare(name: str, reshards: bool) -> float:
    """A whole and a sharded model in the same process, on the same batches."""
    torch.manual_seed(0)
    model = MODELS[name]()
    options: Any = {"only": ["embed", "head"]} if name == "tied" else {}
    if name == "attention":  # whose weights such a kernel makes again in the backward pass
        options = {"kernel": "native", "max_bits": 8}
    one, two = (
        bc.quantize_model(each, bc.quantizers.SBM(error_rounding="nearest"), **options)
        for each in (model, copy.deepcopy(model))
    )
    if name != "tied":  # a shared weight belongs to one group
        for child in two.children():
            if next(child.parameters(), None) is not None:
                fully_shard(child, reshard_after_forward=reshards)
    fully_shard(two, reshard_after_forward=reshards)
    parts = []
    for each in (one, two):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        bits = bc.PrecisionScheduler(each, forward="CR:3-8:1", backward=4, total_steps=4)
        for step in range(4):
            output = each(randn(3, 4, 6, seed=step))
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            bits.step()
        parts.append((output.detach(), [whole(p).detach() for p in each.parameters()]))
    (output_one, weights_one), (output_two, weights_two) = parts
    assert torch.equal(output_one, output_two)
    return max((a - b).abs().max().item() for a, b in zip(weights_one, weights_two, strict=True))


@pytest.mark.parametrize(
    "name", ["linear", *(pytest.param(n, marks=pytest.mark.slow) for n in MODELS if n != "linear")]
)
def test_grids_are_those_of_whole_weights_for_every_kind_of_layer(tmp_path, name):
    assert run_together(compare_layers, 2, tmp_path, name=name) == [0.0, 0.0]


def try_to_convert() -> dict[str, str]:
    """What is said about conversion after sharding, and back."""
    said = {}
    model = perceptron()
    sharded(model)

    def note(name: str, action: Any) -> None:
        try:
            action()
        except ValueError as error:
            said[name] = str(error)

    note("sharded", lambda: bc.quantize_model(model))
    said["audit"] = bc.audit(model)["0"].reason or ""
    alone = fully_shard(nn.Linear(4, 4))
    alone(randn(2, 4))  # a root stays whole after its forward pass
    note("whole for a moment", lambda: bc.quantize_model(alone))
    converted = sharded(bc.quantize_model(perceptron()))
    note("again", lambda: bc.quantize_model(converted))
    note("back", lambda: bc.unquantize_model(converted))
    return said


def test_conversion_after_sharding_is_refused_with_the_way_out(tmp_path):
    for said in run_together(try_to_convert, 2, tmp_path):
        for name in ("sharded", "audit", "whole for a moment", "again"):
            assert "convert first" in said[name]
        assert "fully_shard" in said["back"]


def move_to_one_process() -> bool:
    """The whole state of a trained sharded model, in a model of one process and in a float one."""
    run = Run("fsdp2", total_steps=4, quantizer=EXACT)
    run.train(4)
    state = get_model_state_dict(run.model, options=FULL)
    other = bc.quantize_model(perceptron(), bc.quantizers.SBM(**EXACT))
    other.load_state_dict(state, strict=True)
    perceptron().load_state_dict(bc.float_state_dict(other), strict=True)
    x = randn(5, 8)
    outputs = []
    for model in (run.model, other):
        bc.set_precision(model, "w4a4")
        with torch.no_grad():
            outputs.append(model.eval()(x))
    return torch.equal(*outputs)


@pytest.mark.slow
def test_the_whole_state_evaluates_in_one_process_as_in_two(tmp_path):
    assert run_together(move_to_one_process, 2, tmp_path) == [True, True]


def begin_on_meta() -> list[str]:
    """A model that never was whole anywhere but in its state."""
    whole_run = Run("fsdp2", total_steps=4, quantizer={})
    state = get_model_state_dict(whole_run.model, options=FULL)
    whole_run.train(4)
    with torch.device("meta"):
        model = bc.quantize_model(perceptron())
    sharded(model)
    model.to_empty(device="cpu")
    set_model_state_dict(model, state, options=FULL)
    run = Run.__new__(Run)
    run.__dict__.update(vars(whole_run), inner=model, model=model, losses=[], seen=[])
    run.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run.bits = bc.PrecisionScheduler(model, forward="CR:3-8:2", backward=6, total_steps=4)
    run.train(4)
    return [whole_run.report()["weights"], run.report()["weights"]]


@pytest.mark.slow
def test_a_model_made_on_the_meta_device_trains_the_same(tmp_path):
    for first, second in run_together(begin_on_meta, 2, tmp_path):
        assert first == second


def train_in_bfloat16() -> list[bool]:
    """FSDP2's own mixed precision: weights are gathered in bfloat16, grids are made of those."""
    model = bc.quantize_model(perceptron())
    sharded(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    bc.set_precision(model, "w4a4e6")
    output = model(randn(4, 8))
    output.float().square().mean().backward()
    gradients = [whole(p.grad) for p in model.parameters()]
    return [output.dtype == torch.bfloat16, all(bool(g.isfinite().all()) for g in gradients)]


@pytest.mark.slow
def test_weights_may_be_gathered_in_bfloat16(tmp_path):
    assert run_together(train_in_bfloat16, 2, tmp_path) == [[True, True]] * 2


def ranges_of_own_data() -> list[str]:
    return [_ranges_of_own_data(sync_ranges=is_synced) for is_synced in (True, False)]


def _ranges_of_own_data(sync_ranges: bool) -> str:
    model = sharded(bc.quantize_model(perceptron(), bc.quantizers.SBM(sync_ranges=sync_ranges)))
    bc.set_precision(model, "w4a4e4")
    model(randn(8, 8, seed=dist.get_rank())).sum().backward()
    return digest(layer.act_range for layer in model.modules() if hasattr(layer, "act_range"))


def test_running_ranges_are_equal_on_all_ranks_only_if_synchronized(tmp_path):
    """FSDP2 broadcasts no buffers, as DDP does."""
    first, second = run_together(ranges_of_own_data, 2, tmp_path)
    assert first[0] == second[0]
    assert first[1] != second[1]
