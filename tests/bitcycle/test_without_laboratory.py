"""The library is whole by itself: it works where the laboratory is missing, and never imports it.

What a user writes stands below that heading as functions. Each runs in a fresh interpreter, once
where the laboratory cannot be imported and once where it can.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bitcycle as bc

ROOT = Path(__file__).parents[2]
HIDE = """
import sys
class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "bitcycle_lab":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden)
"""
CALL = """
import json, sys
from tests.bitcycle.test_without_laboratory import {function}
{function}()
print(json.dumps([name for name in sys.modules if name.split(".")[0] == "bitcycle_lab"]))
"""


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, with a folder of its own, that also finds the tests."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# -- what a user writes ---------------------------------------------------------------------------


def build() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A small net, inputs and targets."""
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)), x, x[:, :4].argmax(1)


def train_and_measure() -> None:
    """The quick start, an audit, the cost of a run and a range test."""
    model, x, y = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step() -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    bc.quantize_model(model, skip=["2"])
    assert [row.name for row in bc.audit(model, x[:2]).converted_rows] == ["0"]
    found = bc.precision_range_test(
        model, train_step, restore=[optimizer], low=6, steps_per_precision=8, repeats=1
    )
    assert found.low == 6
    cost = bc.training_cost(model, x, forward="CR:3-8:2", backward=8, total_steps=20)
    assert 0 < cost.saving < 1
    bits = bc.PrecisionScheduler(model, forward="CR:3-8:2", backward=8, total_steps=20)
    losses, seen = [], set()
    for _ in range(20):
        seen.add(bits.precision.weight)
        losses.append(train_step().item())
        bits.step()
    assert losses[-1] < losses[0] / 2
    assert seen == {3, 4, 5, 6, 7, 8}


def export(to: str, name: str) -> None:
    from bitcycle.export import export_model, load_exported

    model, x, _ = build()
    bc.set_precision(bc.quantize_model(model), "w8a8")
    bc.calibrate(model, [x]).eval()
    export_model(model, (x,), to=to, path=name)
    loaded = load_exported(name) if to == "onnx" else load_exported(name, build()[0])
    torch.testing.assert_close(loaded(x), model(x), rtol=0.01, atol=0.01)


def export_safetensors() -> None:
    export("safetensors", "model.safetensors")


def export_onnx() -> None:
    export("onnx", "model.onnx")


def train_with_lightning() -> None:
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    from bitcycle.integrations.lightning import PrecisionCallback

    model, x, y = build()
    seen = []

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = bc.quantize_model(model)

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            seen.append(bc.get_precision(self.net).weight)
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pl.Trainer(
        callbacks=[PrecisionCallback(forward="CR:3-8:1", backward=8)], max_epochs=1,
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Classifier(), DataLoader(TensorDataset(x, y), batch_size=8))
    assert seen == bc.parse_schedule("CR:3-8:1").values(8)


def train_with_transformers() -> None:
    from transformers import Trainer, TrainingArguments

    from bitcycle.integrations.transformers import PrecisionCallback

    model, x, y = build()
    seen = []

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            seen.append(bc.get_precision(self.net).weight)
            return {"loss": F.cross_entropy(self.net(x), labels)}

    trainer = Trainer(
        bc.quantize_model(Classifier()),
        TrainingArguments(
            output_dir="trained", use_cpu=True, report_to="none", disable_tqdm=True,
            save_strategy="no", per_device_train_batch_size=8, num_train_epochs=1,
        ),
        callbacks=[PrecisionCallback(forward="CR:3-8:1", backward=8)],
        train_dataset=[{"x": a, "labels": b} for a, b in zip(x, y, strict=True)],
    )  # fmt: skip
    trainer.train()
    trained = [bits for bits in seen if bits is not None]  # None: the batch that counts the cost
    assert trained == bc.parse_schedule("CR:3-8:1").values(8)


# -- the tests ------------------------------------------------------------------------------------

FUNCTIONS = [
    train_and_measure,
    export_safetensors,
    *(
        pytest.param(function, marks=pytest.mark.slow)
        for function in (export_onnx, train_with_lightning, train_with_transformers)
    ),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_works_where_the_laboratory_is_missing(function, tmp_path):
    check(function, tmp_path, HIDE)


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_does_not_import_the_laboratory_where_there_is_one(function, tmp_path):
    check(function, tmp_path, "")


def check(function: Callable[[], None], folder: Path, before: str) -> None:
    done = python(before + CALL.format(function=function.__name__), folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_the_laboratory_is_really_missing_there(tmp_path):
    done = python(f"{HIDE}import bitcycle_lab.models", tmp_path)
    assert "ModuleNotFoundError" in done.stderr


RUN = "import runpy; runpy.run_module('bitcycle', run_name='__main__')"  # python -m bitcycle


def test_the_commands_say_in_one_sentence_that_it_is_missing(tmp_path):
    done = python(HIDE + RUN, tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "bitcycle_lab" in line  # what is missing
    assert "pip install" in line  # the way out


def test_an_error_within_the_commands_is_not_taken_for_a_missing_laboratory(tmp_path):
    done = python(f"import sys; sys.modules['argparse'] = None\n{RUN}", tmp_path)
    assert "ModuleNotFoundError: import of argparse halted" in done.stderr
