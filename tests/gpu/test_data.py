"""Batches come to the device without a wait, and a whole run trains, stops and resumes there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import bitcycle_lab.train.loop
from bitcycle.gpu import driver
from bitcycle_lab.cli.main import main
from bitcycle_lab.data.batches import Batch, Key, Tensors
from bitcycle_lab.data.images import ImageArrays
from bitcycle_lab.data.text import Blocks
from bitcycle_lab.train.checkpoint import Checkpoints
from tests.bitcycle_lab.cli.runs import write_config
from tests.bitcycle_lab.train.small import metrics_of

from .conftest import use
from .emulated import counted, is_emulated

emulated_only = pytest.mark.skipif(not is_emulated(), reason="a real device counts nothing")
INDICES = np.array([3, 0, 2])
HEALING = "wikitext2-transformer-nvfp4-heal-forward"  # NVFP4, and bfloat16 at the end


def images() -> ImageArrays:
    pixels = torch.arange(4 * 3 * 6 * 6).remainder(251).to(torch.uint8).view(4, 3, 6, 6)
    return ImageArrays(
        pixels=pixels, targets=torch.arange(4), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7),
        padding=2, flip=True,
    )  # fmt: skip


SAMPLES = {
    "tensors": lambda: Tensors(torch.randn(4, 5), torch.arange(4)),
    "images": images,
    "blocks": lambda: Blocks(tokens=torch.arange(21), length=5),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_batch_is_that_of_the_cpu_and_does_not_wait(name):
    samples, key = SAMPLES[name](), Key(seed=0, epoch=1)
    expected, on_device = samples.fetch(INDICES, key), samples.to("cuda")
    with counted() as counts:
        found = on_device.fetch(INDICES, key)
    assert (counts.reads, counts.waits) == (0, 0)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.is_cuda
        torch.testing.assert_close(ours.cpu(), theirs)


def test_a_batch_of_the_host_is_moved_without_a_wait():
    batch = Batch(inputs=torch.randn(2, 3), targets=torch.arange(2))
    with counted() as counts:
        moved = batch.to("cuda")
    assert counts.waits == 0
    assert moved.inputs.tolist() == batch.inputs.tolist()


@pytest.mark.parametrize("model", ["digits_mlp", "digits_convnet"])
def test_a_step_of_a_run_does_not_wait(tmp_path, monkeypatch, model):
    step, waits = bitcycle_lab.train.loop.train_step, []

    def watched(session, micro_batches):
        assert session.device.type == "cuda"
        with counted() as counts:
            step(session, micro_batches)
        waits.append(counts.waits)

    monkeypatch.setattr(bitcycle_lab.train.loop, "train_step", watched)
    config = write_config(tmp_path, model={"name": model})
    assert main(["train", str(config), "--quiet"]) == 0
    assert len(waits) == 12
    assert sum(waits[1:]) == 0


RUNS = {
    "sbm": ("sm_80", {"forward": "CR:3-8:1", "backward": 8}, {"multiply"}),
    "nvfp4, healed": (
        "sm_100",
        {"quantizer": "nvfp4", "forward": "stages:nvfp4@0.5,bf16", "backward": "nvfp4"},
        {"scaled_mm", "encode_scaled", "to_bf16"},
    ),
}


@pytest.mark.parametrize("rounding", ["triton"], indirect=True)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_stopped_resumes_bit_for_bit(tmp_path, monkeypatch, name, rounding):
    device_class, precision, kernels = RUNS[name]
    if is_emulated():
        monkeypatch.setattr(driver, "device_class", lambda index: device_class)
    results, launched = [], set()
    for which in ("whole", "stopped"):
        folder = tmp_path / which
        folder.mkdir()
        rare = {"eval": {"every": 6}, "checkpoint": {"every": 2}, "steps": 6}
        config = write_config(folder, precision={**precision, "kernel": "gpu"}, **rare)
        arguments = ["train", str(config), "--quiet"]
        with counted() as counts:
            if which == "stopped":
                with monkeypatch.context() as patch:
                    _stop_at(patch, step=3)
                    assert main(arguments) != 0
                assert main(["resume", str(folder / "runs" / "tiny-seed0"), "--quiet"]) == 0
            else:
                assert main(arguments) == 0
        launched |= {each.removeprefix("triton::") for each in counts.operations}
        run = folder / "runs" / "tiny-seed0"
        results.append(Checkpoints(run / "checkpoints").load(6)["model"])
    whole, resumed = results
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    assert kernels <= launched or not is_emulated()


@emulated_only
@pytest.mark.parametrize("rounding", ["triton"], indirect=True)
def test_the_healing_recipe_trains_by_kernels_as_by_torch(tmp_path, monkeypatch, rounding):
    monkeypatch.setattr(driver, "device_class", lambda index: "sm_100")
    folder, losses = tmp_path / "wikitext-2", []
    folder.mkdir()
    for split in ("train", "valid", "test"):
        text = " ".join(f"w{number % 17}" for number in range(48 if split == "train" else 10))
        (folder / f"wiki.{split}.tokens").write_text(text)
    for kernel, which in (("gpu", "triton"), ("simulate", "torch")):
        use(monkeypatch, which)
        changes = {
            "model.options.dim": 32, "model.options.ffn_dim": 32, "data.batch_size": 2,
            "data.eval_batch_size": 2, "data.sequence_length": 4, "steps": 3, "data.root": tmp_path,
            "data.cache_dir": folder, "output": tmp_path / kernel, "precision.kernel": kernel,
            "tracking.log_every": 1,
        }  # fmt: skip
        options = [f"--{key}={value}" for key, value in changes.items()]
        with counted() as counts:
            assert main(["train", HEALING, "--quiet", *options]) == 0
        if kernel == "gpu":
            launched = {each.removeprefix("triton::") for each in counts.operations}
            assert {"scaled_mm", "encode_scaled", "to_bf16"} <= launched
        (run,) = (tmp_path / kernel).iterdir()
        losses.append([line["loss"] for line in metrics_of(run) if line["kind"] == "train"])
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
    assert not driver.failures()


def _stop_at(monkeypatch, *, step):
    train_step = bitcycle_lab.train.loop.train_step

    def stopping(session, micro_batches):
        if session.step == step:
            raise KeyboardInterrupt
        train_step(session, micro_batches)

    monkeypatch.setattr(bitcycle_lab.train.loop, "train_step", stopping)


@emulated_only
@pytest.mark.parametrize("rounding", ["triton"], indirect=True)
def test_the_program_of_the_page_about_gpus_runs_by_kernels(rounding):
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    with counted() as counts:
        exec(
            program.replace("bc.quantize_model(model)", "bc.quantize_model(model, kernel='gpu')"),
            {},
        )
    found = {each.removeprefix("triton::"): n for each, (n, _) in counts.operations.items()}
    assert found["multiply"] == 2 * 2 * 10  # output and grad_weight of two layers
    assert found["multiply_folded"] == 10  # grad_input of the second
