"""The emulated device itself: it refuses what CUDA refuses, and counts."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from .emulated import counted, is_emulated

emulated_only = pytest.mark.skipif(not is_emulated(), reason="a real device counts nothing")


def test_tensors_of_two_devices_do_not_mix():
    x = torch.ones(3, device="cuda")
    for mixed in (lambda: x + torch.ones(3), lambda: torch.cat([x, torch.ones(())[None]])):
        with pytest.raises(RuntimeError):
            mixed()
    assert (x + torch.tensor(2.0)).tolist() == [3.0, 3.0, 3.0]  # a number of the host is allowed


@emulated_only
def test_launches_and_their_bytes_are_counted_and_views_are_not():
    x = torch.ones(4, 8, device="cuda")
    with counted() as counts:
        x.t().view(2, 4, 4).unsqueeze(0)[0].expand(2, 4, 4).detach()
    assert (counts.launches, counts.bytes) == (0, 0)
    with counted() as counts:
        x[:2].expand(2, 8) + 1  # 16 numbers read, 16 written
        x.add_(1)  # 32 and 32
        torch.zeros(8, device="cuda")  # 8 written
    assert counts.launches == 3
    assert counts.bytes == 4 * (32 + 64 + 8)
    assert set(counts.operations) == {"add", "zero_"}


@emulated_only
def test_uploads_reads_and_what_waits_are_counted():
    host = torch.ones(4)
    with counted() as counts:
        x = host.to("cuda")
        y = host.pin_memory().to("cuda", non_blocking=True)
    assert (counts.uploads, counts.reads, counts.waits, counts.launches) == (2, 0, 1, 0)
    with counted() as counts:
        x.to("cpu", non_blocking=True)  # to pinned memory
    assert (counts.reads, counts.waits) == (1, 0)
    for read in (x.cpu, x[0].item, x.nonzero, lambda: bool(x.any()), lambda: torch.equal(x, y)):
        with counted() as counts:
            read()
        assert (counts.reads, counts.waits) == (1, 1)


def test_a_model_is_copied_saved_and_loaded():
    model = nn.Linear(3, 2).cuda()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file)
    for weight in (copy.deepcopy(model).weight, loaded["weight"]):
        assert weight.is_cuda
        assert torch.equal(weight, model.weight)
        assert weight.data_ptr() != model.weight.data_ptr()


def test_a_step_is_that_of_the_cpu():
    states = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))
        model.to(device, torch.float64)  # which TF32 does not touch
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.linspace(-1, 1, 216).view(2, 3, 6, 6).to(device).double()).sum().backward()
        optimizer.step()
        states.append([value.cpu() for value in model.state_dict().values()])
    for ours, theirs in zip(*states, strict=True):
        torch.testing.assert_close(ours, theirs)
