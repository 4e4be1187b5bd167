"""Real Lightning trainers on a small model."""

from __future__ import annotations

import csv

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    WeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bitcycle as bc
from bitcycle.cost import training_cost
from bitcycle.integrations.lightning import PrecisionCallback
from tests.bitcycle.toys import randn

ROLES = dict(forward="CR:3-5:1", backward=8)


class Module(pl.LightningModule):
    """Errors are rounded stochastically; no dropout, whose generator Lightning does not save."""

    def __init__(self, *, converts: bool = True) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        if converts:
            bc.quantize_model(self.net)
        self.seen: list[tuple[str, str]] = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        self.seen.append(("train", str(bc.get_precision(self))))
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.seen.append(("val", str(bc.get_precision(self))))
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def loader(num: int = 24) -> DataLoader:
    data = TensorDataset(randn(num, 4), torch.arange(num) % 3)
    return DataLoader(data, batch_size=4)


def trainer(folder, *callbacks, **options) -> pl.Trainer:
    quiet = dict(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
        num_sanity_val_steps=0, log_every_n_steps=1,
    )  # fmt: skip
    return pl.Trainer(callbacks=list(callbacks), default_root_dir=folder, **(quiet | options))


def bits_of_training(module: Module) -> list[str]:
    return [bits for kind, bits in module.seen if kind == "train"]


def saved(callback: PrecisionCallback) -> dict:
    checkpoint = {}
    callback.on_save_checkpoint(None, None, checkpoint)
    return checkpoint["bitcycle"]


def scheduled(total: int) -> list[str]:
    schedule = bc.parse_schedule("CR:3-5:1")
    return [f"w{b}a{b}e8" for b in (schedule(step, total) for step in range(total))]


@pytest.mark.parametrize(
    ("options", "total"),
    [
        (dict(max_epochs=2), 12),
        (dict(max_steps=7), 7),
        (dict(max_epochs=2, accumulate_grad_batches=4), 4),  # 6 batches: 4 and 2
    ],
)
def test_the_total_is_the_trainers_and_bits_move_on_optimizer_steps(tmp_path, options, total):
    module, bits = Module(), PrecisionCallback(**ROLES)
    trainer(tmp_path, bits, **options).fit(module, loader())
    assert (bits.scheduler.total_steps, bits.scheduler.finished) == (total, True)
    accumulate = options.get("accumulate_grad_batches", 1)
    steps = [i % 6 // accumulate + i // 6 * -(-6 // accumulate) for i in range(12)]
    expected = [scheduled(total)[step] for step in steps if step < total]
    assert bits_of_training(module) == expected


def test_validation_runs_at_its_own_bits_and_leaves_training_as_it_is_without(tmp_path):
    plain, validated = Module(), Module()
    for module, options in ((plain, {}), (validated, dict(val_dataloaders=loader(4)))):
        run = trainer(tmp_path, PrecisionCallback(**ROLES), max_epochs=2, val_check_interval=2)
        run.fit(module, loader(), **options)
    assert {bits for kind, bits in validated.seen if kind == "val"} == {"w5a5e8"}
    assert bits_of_training(validated) == bits_of_training(plain)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, validated.state_dict()[name]), name


class Leveled(Module):
    """Notes what the arithmetic reads, not what the layer says."""

    def validation_step(self, batch, _):
        self(batch[0])
        self.seen.append(("val", self.net[0].control[:2].tolist()))


def test_averaged_weights_are_evaluated_at_the_evaluation_bits(tmp_path):
    module = Leveled()
    run = trainer(tmp_path, PrecisionCallback(**ROLES), WeightAveraging(), max_epochs=2)
    run.fit(module, loader(), loader(4))  # the average of level counts is no level count
    assert [seen for kind, seen in module.seen if kind == "val"] == [[31, 31], [31, 31]]


@pytest.mark.parametrize(
    ("asked", "bits"), [("full", "fp32"), ("w4a4", "w4a4"), ("scheduled", "w3a3e8")]
)
def test_evaluation_takes_the_bits_it_was_asked_for(tmp_path, asked, bits):
    module = Module()
    callback = PrecisionCallback(**ROLES, eval_precision=asked)
    run = trainer(tmp_path, callback, max_epochs=8, limit_train_batches=1)
    run.fit(module, loader(), loader(4))
    assert next(seen for kind, seen in module.seen if kind == "val") == bits
    run.test(module, loader(4), verbose=False)
    assert module.seen[-1] == ("val", "w5a5e8" if asked == "scheduled" else bits)


def test_summary_and_sanity_check_are_float32_as_no_range_was_seen_yet(tmp_path):
    module = Module()
    module.example_input_array = randn(4, 4)
    options = dict(max_epochs=1, num_sanity_val_steps=1, enable_model_summary=True)
    run = trainer(tmp_path, PrecisionCallback(**ROLES), **options)
    run.fit(module, loader(), loader(4))
    assert module.seen[0] == ("val", "fp32")
    assert module.seen[1] == ("train", "w3a3e8")


@pytest.mark.parametrize("accumulate", [2])
def test_an_interrupted_run_resumed_by_the_trainer_ends_bit_identical(tmp_path, accumulate):
    options = dict(max_epochs=4, accumulate_grad_batches=accumulate)

    def fit(callback, stop=None, ckpt=None):
        module = Module()
        saver = ModelCheckpoint(tmp_path / f"stop-{stop}", save_last=True, every_n_epochs=1)
        limit = [StopAfter(stop)] if stop else []
        run = trainer(tmp_path, callback, saver, *limit, **options)
        run.fit(module, loader(), loader(4), ckpt_path=ckpt)
        return module

    whole = PrecisionCallback(**ROLES, example_inputs=randn(4, 4))
    expected = fit(whole)
    fit(PrecisionCallback(**ROLES, example_inputs=randn(4, 4)), stop=1)
    resumed = PrecisionCallback(**ROLES, example_inputs=randn(4, 4))
    actual = fit(resumed, ckpt=tmp_path / "stop-1" / "last.ckpt")
    num_before = 2 * 6
    assert bits_of_training(actual) == bits_of_training(expected)[num_before:]
    assert saved(resumed) == saved(whole)  # cost and kernels, too
    for name, value in expected.state_dict().items():
        assert torch.equal(value, actual.state_dict()[name]), name


class Remembering:
    """A loader that saves its place, as those of torchdata do."""

    def __init__(self) -> None:
        self.batches, self.place = list(loader()), 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.place %= len(self)
        while self.place < len(self):
            self.place += 1
            yield self.batches[self.place - 1]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def test_a_run_resumed_in_mid_epoch_at_its_place_in_the_data_ends_bit_identical(tmp_path):
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=4, save_top_k=-1)
    expected, actual = Module(), Module()
    trainer(tmp_path, saver, PrecisionCallback(**ROLES), max_epochs=2).fit(expected, Remembering())
    run = trainer(tmp_path, PrecisionCallback(**ROLES), max_epochs=2)
    run.fit(actual, Remembering(), ckpt_path=tmp_path / "epoch=1-step=8.ckpt")
    for name, value in expected.state_dict().items():
        assert torch.equal(value, actual.state_dict()[name]), name


class StopAfter(pl.Callback):
    """Ends the run with this epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.should_stop = trainer.current_epoch >= self.epoch


def test_early_stopping_ends_the_run_within_the_schedule(tmp_path):
    module, bits = Module(), PrecisionCallback(**ROLES)
    stop = EarlyStopping("val_loss", patience=1, min_delta=100)
    trainer(tmp_path, bits, stop, max_epochs=10).fit(module, loader(), loader(4))
    assert (bits.scheduler.step_count, bits.scheduler.total_steps) == (12, 60)
    assert str(bc.get_precision(module)) == "w5a5e8"  # left as it was evaluated


def test_bits_and_cost_reach_the_trainers_logger(tmp_path):
    module, logger = Module(), CSVLogger(tmp_path)
    bits = PrecisionCallback(**ROLES, example_inputs=randn(4, 4))
    trainer(tmp_path, bits, max_epochs=2, logger=logger).fit(module, loader())
    with open(tmp_path / "lightning_logs" / "version_0" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    logged = [float(row["bits/forward"]) for row in rows]
    assert [f"w{bits:.0f}a{bits:.0f}e8" for bits in logged] == scheduled(12)
    cost = training_cost(module, randn(4, 4), **ROLES, total_steps=12)
    assert float(rows[-1]["cost/bitops"]) == pytest.approx(cost.bitops)
    assert float(rows[-1]["cost/saved"]) == pytest.approx(cost.saving)


def test_a_checkpoint_without_the_callback_resumes_by_its_step(tmp_path):
    saver = ModelCheckpoint(tmp_path, save_last=True)
    trainer(tmp_path, saver, max_epochs=1).fit(Module(), loader())
    module, bits = Module(), PrecisionCallback(**ROLES)
    run = trainer(tmp_path, bits, max_epochs=2)
    with pytest.warns(bc.BitcycleWarning, match="step 6"):
        run.fit(module, loader(), ckpt_path=tmp_path / "last.ckpt")
    assert bits_of_training(module) == scheduled(12)[6:]


def test_a_checkpoint_is_evaluated_at_its_evaluation_bits_without_a_fit(tmp_path):
    saver = ModelCheckpoint(tmp_path, save_last=True)
    trainer(tmp_path, saver, PrecisionCallback(**ROLES), max_epochs=1).fit(Module(), loader())
    module = Module()
    run = trainer(tmp_path, PrecisionCallback(**ROLES))
    run.validate(module, loader(4), ckpt_path=tmp_path / "last.ckpt", verbose=False)
    assert module.seen == [("val", "w5a5e8")]


def test_fit_again_continues_with_the_longer_schedule(tmp_path):
    module, bits = Module(), PrecisionCallback(**ROLES)
    run = trainer(tmp_path, bits, max_epochs=1)
    run.fit(module, loader())
    run.fit_loop.max_epochs = 2
    with pytest.warns(bc.BitcycleWarning, match="total_steps 6"):
        run.fit(module, loader())
    assert bits_of_training(module) == scheduled(6) + scheduled(12)[6:]


class Endless(IterableDataset):
    def __iter__(self):
        return iter(loader(24).dataset)


def test_a_trainer_that_cannot_tell_the_total_needs_to_be_told(tmp_path):
    data, endless = DataLoader(Endless(), batch_size=4), dict(max_epochs=1)
    with pytest.raises(ValueError, match="max_epochs"):
        trainer(tmp_path, PrecisionCallback(**ROLES), **endless).fit(Module(), data)
    bits = PrecisionCallback(**ROLES, total_steps=6)
    trainer(tmp_path, bits, **endless).fit(Module(), data)
    assert bits.scheduler.finished


def test_a_trainer_that_continues_after_the_total_keeps_the_final_bits(tmp_path):
    module, bits = Module(), PrecisionCallback(**ROLES, total_steps=4)
    run = trainer(tmp_path, bits, StopAfter(1), max_epochs=-1)
    with pytest.warns(bc.BitcycleWarning, match="total_steps=4") as caught:
        run.fit(module, loader())
    assert [w.category for w in caught].count(bc.BitcycleWarning) == 1
    assert bits_of_training(module) == scheduled(4) + ["w5a5e8"] * 8
    assert bits.scheduler.step_count == 12


# -- schedules that follow the loss ---------------------------------------------------------------

PLATEAU = "plateau:3-5:window=1:patience=1:threshold=0.01"


class Told(Module):
    """Has the losses that a list says, whatever it computes; manual: steps by itself."""

    def __init__(self, losses: list[float], *, is_manual: bool = False) -> None:
        super().__init__()
        self.losses, self.automatic_optimization = losses, not is_manual

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        told = loss - loss.detach() + self.losses[len(bits_of_training(self)) - 1]
        if self.automatic_optimization:
            return told
        self.optimizers().zero_grad()
        self.manual_backward(told)
        self.optimizers().step()
        return {"loss": told}


def followed(losses: list[float]) -> list[str]:
    """The bits of a plain loop that is told the same losses."""
    model = bc.quantize_model(nn.Linear(2, 2))
    bits = bc.PrecisionScheduler(model, forward=PLATEAU, backward=8, total_steps=len(losses))
    seen = []
    for loss in losses:
        seen.append(str(bits.precision))
        bits.step(loss)
    return seen


@pytest.mark.parametrize("is_manual", [False, True])
def test_a_schedule_follows_the_loss_that_the_training_step_returns(tmp_path, is_manual):
    losses = [3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    module = Told(losses, is_manual=is_manual)
    trainer(tmp_path, PrecisionCallback(PLATEAU, 8), max_epochs=2).fit(module, loader())
    assert bits_of_training(module) == followed(losses)
    assert len(set(bits_of_training(module))) == 3


def test_it_follows_the_mean_loss_of_the_micro_batches(tmp_path):
    steps = [3.0, 2.0, 2.0, 2.0, 1.0, 1.0]
    micro = [loss + offset for loss in steps for offset in (0.5, -0.5)]
    module = Told(micro)
    run = trainer(tmp_path, PrecisionCallback(PLATEAU, 8), max_epochs=2, accumulate_grad_batches=2)
    run.fit(module, loader())
    assert bits_of_training(module)[::2] == followed(steps)


def test_a_run_that_follows_the_loss_resumes_with_what_it_has_seen(tmp_path):
    losses = [3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    saver = ModelCheckpoint(tmp_path, save_last=True, every_n_epochs=1)
    first = Told(losses)
    run = trainer(tmp_path, PrecisionCallback(PLATEAU, 8), saver, StopAfter(0), max_epochs=2)
    run.fit(first, loader())
    second = Told(losses[6:])
    run = trainer(tmp_path, PrecisionCallback(PLATEAU, 8), max_epochs=2)
    run.fit(second, loader(), ckpt_path=tmp_path / "last.ckpt")
    assert bits_of_training(first) + bits_of_training(second) == followed(losses)


def test_a_schedule_without_its_loss_is_an_error(tmp_path):
    class Silent(Told):
        def training_step(self, batch, index):
            super().training_step(batch, index)

    run = trainer(tmp_path, PrecisionCallback(PLATEAU, 8), max_epochs=1)
    with pytest.raises(ValueError, match="training_step"):
        run.fit(Silent([1.0] * 6, is_manual=True), loader())


def test_an_accumulation_that_changes_needs_a_total(tmp_path):
    def fit(**options):
        bits, changing = PrecisionCallback(**ROLES, **options), {0: 1, 1: 2}
        accumulate = GradientAccumulationScheduler(changing)
        trainer(tmp_path, bits, accumulate, max_epochs=2).fit(Module(), loader())
        return bits.scheduler.finished

    with pytest.raises(ValueError, match="total_steps="):
        fit()
    assert fit(total_steps=9)  # 6 and 3


def test_nothing_left_to_train_leaves_the_checkpoint_to_evaluation(tmp_path):
    saver = ModelCheckpoint(tmp_path, save_last=True)
    trainer(tmp_path, saver, PrecisionCallback(**ROLES), max_epochs=1).fit(Module(), loader())
    module = Module()
    run = trainer(tmp_path, PrecisionCallback(**ROLES), max_epochs=1)
    run.fit(module, loader(), ckpt_path=tmp_path / "last.ckpt")
    run.test(module, loader(4), verbose=False)
    assert module.seen == [("val", "w5a5e8")]


@pytest.mark.parametrize(
    ("callbacks", "converts", "message"),
    [
        ([PrecisionCallback(**ROLES)], False, "quantize_model"),
        ([PrecisionCallback(**ROLES, total_steps=5)], True, "total_steps=5.*6"),
        ([PrecisionCallback(**ROLES), PrecisionCallback(**ROLES)], True, "two"),
        ([PrecisionCallback("noise:4,8", 8)], True, "noise_norm"),
    ],
)  # fmt: skip
def test_mistakes_are_clear_errors_before_the_first_step(tmp_path, callbacks, converts, message):
    module = Module(converts=converts)
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, *callbacks, max_epochs=1).fit(module, loader())
    assert module.seen == []


class Several(Module):
    """Steps its optimizers itself."""

    def __init__(self, num_optimizers: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.num_optimizers = num_optimizers

    def training_step(self, batch, index):
        optimizers = self.optimizers()
        loss = super().training_step(batch, index)
        self.manual_backward(loss)
        for _ in range(2):
            (optimizers[0] if isinstance(optimizers, list) else optimizers).step()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(self.num_optimizers)]


@pytest.mark.parametrize(("number", "message"), [(1, "2 optimizer steps"), (2, "2 optimizers")])
def test_more_steps_than_one_per_batch_are_an_error(tmp_path, number, message):
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, PrecisionCallback(**ROLES), max_epochs=1).fit(Several(number), loader())


class Accumulating(Several):
    """Steps its optimizer at every second batch."""

    def __init__(self) -> None:
        super().__init__(1)

    def training_step(self, batch, index):
        self.manual_backward(Module.training_step(self, batch, index))
        if index % 2:
            self.optimizers().step()
            self.optimizers().zero_grad()


def test_fewer_steps_than_batches_need_a_total(tmp_path):
    with pytest.raises(ValueError, match="total_steps="):
        trainer(tmp_path, PrecisionCallback(**ROLES), max_epochs=2).fit(Accumulating(), loader())
    bits = PrecisionCallback(**ROLES, total_steps=6)
    trainer(tmp_path, bits, max_epochs=2).fit(Accumulating(), loader())
    assert bits.scheduler.finished


# -- formats --------------------------------------------------------------------------------------


class Healed(Module):
    """Converted for NVFP4, whose errors are rounded stochastically."""

    def __init__(self) -> None:
        super().__init__(converts=False)
        bc.quantize_model(self.net, "nvfp4")
        self.example_input_array = torch.zeros(4, 4)


HEALING = dict(forward="stages:nvfp4@0.82,bf16", backward="nvfp4")


def test_healing_trains_validates_and_logs_like_any_schedule(tmp_path):
    module, bits = Healed(), PrecisionCallback(**HEALING)
    run = trainer(tmp_path, bits, max_steps=11, max_epochs=2)
    run.fit(module, loader(), val_dataloaders=loader(4))
    switch = 9  # 0.82 x 11
    assert bits_of_training(module) == (
        ["w=nvfp4,a=nvfp4,e=nvfp4"] * switch + ["w=bf16,a=bf16,e=nvfp4"] * (11 - switch)
    )
    assert {each for kind, each in module.seen if kind == "val"} == {"w=bf16,a=bf16,e=nvfp4"}
    assert run.callback_metrics["bits/forward"] == 16
    assert run.callback_metrics["bits/backward"] == 4
    assert 0 < run.callback_metrics["cost/saved"] < 1


def test_a_run_resumed_within_healing_ends_to_the_bit_as_one_without_a_break(tmp_path):
    whole, cut = Healed(), Healed()
    saving = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=5, save_top_k=-1)
    trainer(tmp_path, PrecisionCallback(**HEALING), saving, max_epochs=2).fit(whole, Remembering())
    run = trainer(tmp_path, PrecisionCallback(**HEALING), max_epochs=2)
    run.fit(cut, Remembering(), ckpt_path=tmp_path / "step=10.ckpt")
    assert len(bits_of_training(cut)) == 2
    assert bits_of_training(cut)[-1] == "w=bf16,a=bf16,e=nvfp4"
    for name, value in whole.state_dict().items():
        assert torch.equal(value, cut.state_dict()[name]), name
