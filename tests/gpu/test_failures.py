"""A GPU kernel that cannot run: the run goes on without it, and so does one that is resumed."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

import bitcycle as bc
import bitcycle_lab.train.loop
from bitcycle.gpu import driver
from bitcycle.model_precision import kernel_state, restore_kernels
from bitcycle_lab.cli.main import main
from bitcycle_lab.train.checkpoint import Checkpoints
from tests.bitcycle_lab.cli.runs import write_config

from .conftest import use
from .emulated import counted, failing, is_emulated
from .models import make, optimizer_of, set_step, state_of, train_step

pytestmark = [
    pytest.mark.skipif(not is_emulated(), reason="kernels of a real device are not made to fail"),
    pytest.mark.parametrize("rounding", ["triton"], indirect=True),
]
REFUSED = RuntimeError("out of resource: shared memory\nRequired: 300000, limit: 232448")


def train(steps, model, x, optimizer):
    for step in steps:
        set_step(model, step)
        train_step(model, optimizer, x)


def new_run(kernel="simulate"):
    model, x = make("linear", "cuda", kernel=kernel)
    bc.set_precision(model, "FW4/BW8")
    return model, x, optimizer_of(model)


def test_a_kernel_that_fails_warns_once_and_changes_no_number(monkeypatch):
    run = new_run()
    with failing("encode", REFUSED), pytest.warns(bc.BitcycleWarning) as caught:
        train(range(2), *run)
    assert len(caught) == 1
    assert "encode" in str(caught[0].message)
    assert "shared memory" in str(caught[0].message)
    with counted() as counts:
        train([2], *run)
    assert "triton::encode" not in counts.operations
    assert "triton::range" in counts.operations
    use(monkeypatch, "torch")
    other = new_run()
    train(range(3), *other)
    ours, theirs = state_of(run[0]), state_of(other[0])
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_too_little_memory_is_an_error_and_not_the_kernels_fault():
    run = new_run()
    with failing("encode", torch.OutOfMemoryError("2 GiB")), pytest.raises(torch.OutOfMemoryError):
        train([0], *run)
    assert driver.failures() == {}
    train([0], *run)


def test_a_lost_device_is_an_error_and_not_the_kernels_fault(monkeypatch):
    def synchronize(device=None):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with failing("encode", REFUSED), pytest.raises(RuntimeError, match="illegal memory access"):
        train([0], *new_run())
    assert driver.failures() == {}


def test_a_resumed_run_leaves_out_what_failed(monkeypatch):
    run = new_run()
    with failing("encode", REFUSED), pytest.warns(bc.BitcycleWarning):
        train([0], *run)
    state = json.loads(json.dumps(kernel_state(run[0])))
    assert state["has_gpu_kernels"] is True
    assert state["failed_gpu_kernels"] == ["encode"]
    monkeypatch.setattr(driver, "_failed", {})  # another process
    again = new_run()
    assert kernel_state(again[0])["failed_gpu_kernels"] == []
    restore_kernels(again[0], state)
    with counted() as counts:
        train([0], *again)
    assert "triton::encode" not in counts.operations
    assert kernel_state(again[0]) == state


def test_products_of_codes_resume_only_where_triton_runs(monkeypatch):
    model, _, _ = new_run("gpu")
    state = kernel_state(model)
    restore_kernels(model, state)
    assert {layer.kernel.name for layer in (model[0], model[2])} == {"gpu"}
    with pytest.raises(ValueError, match="the model is on cpu"):
        restore_kernels(make("linear", "cpu", kernel="gpu")[0], state)
    use(monkeypatch, "torch")
    with pytest.raises(ValueError, match=driver.SWITCH):
        restore_kernels(model, state)


def test_a_run_that_began_without_triton_multiplies_floats_when_it_resumes(monkeypatch):
    use(monkeypatch, "torch")
    model, _, _ = new_run("gpu")
    state = kernel_state(model)
    assert state["has_gpu_kernels"] is False
    use(monkeypatch, "triton")
    restore_kernels(model, state)
    assert {layer.kernel.name for layer in (model[0], model[2])} == {"simulate"}


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_run_records_its_kernels_and_resumes_with_them(tmp_path, monkeypatch, has_failed):
    changes = {"precision": {"forward": 8}, "checkpoint": {"every": 2}, "eval": {"every": 2}}
    config = write_config(tmp_path, steps=4, **changes)
    run, step = tmp_path / "runs" / "tiny-seed0", bitcycle_lab.train.loop.train_step

    def stopping(session, micro_batches):
        if session.step == 2:
            raise KeyboardInterrupt
        step(session, micro_batches)

    monkeypatch.setattr(bitcycle_lab.train.loop, "train_step", stopping)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bc.BitcycleWarning)
        with failing("encode" if has_failed else "no_kernel", REFUSED):
            assert main(["train", str(config), "--quiet"]) != 0
    monkeypatch.setattr(bitcycle_lab.train.loop, "train_step", step)
    expected = ["encode"] if has_failed else []
    saved = Checkpoints(run / "checkpoints").load(2)["run"]
    assert (saved["has_gpu_kernels"], saved["failed_gpu_kernels"]) == (True, expected)
    monkeypatch.setattr(driver, "_failed", {})  # another process
    with counted() as counts:
        assert main(["resume", str(run), "--quiet"]) == 0
    assert ("triton::encode" in counts.operations) is not has_failed
    result = json.loads((run / "result.json").read_text())
    assert (result["has_gpu_kernels"], result["failed_gpu_kernels"]) == (True, expected)
