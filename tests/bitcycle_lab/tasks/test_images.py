"""Image classification."""

import math

import pytest
import torch
from torch import nn

from bitcycle_lab.data import Batch, load_images
from bitcycle_lab.tasks import TASKS, DataConfig, ModelConfig
from tests.bitcycle_lab.data.layouts import cifar100_parts, write_binary


def images(model=None, data=None, **options):
    return TASKS["images"](ModelConfig(**(model or {})), DataConfig(**(data or {})), **options)


class Fixed(nn.Module):
    """Gives the logits it was made with."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, x):
        return self.logits


def naive(logits, targets):
    """Loss, top-1 and top-5 in percent, sample by sample."""
    losses, first, five = [], 0, 0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        losses.append(math.log(sum(math.exp(v) for v in row)) - row[target])
        better = sum(value > row[target] for value in row)
        first, five = first + (better == 0), five + (better < 5)
    count = len(losses)
    return {
        "loss": sum(losses) / count,
        "accuracy": 100 * first / count,
        "top5": 100 * five / count,
    }


def test_metrics_equal_a_naive_computation_over_batches():
    task = images()
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(50, 10, generator=generator), torch.arange(50) % 10
    totals = {}
    for part in (slice(0, 32), slice(32, 50)):  # of different sizes
        batch = Batch(inputs=torch.zeros(1), targets=targets[part])
        loss, sums = task.loss(Fixed(logits[part]), batch)
        assert loss.item() == pytest.approx(naive(logits[part], targets[part])["loss"], rel=1e-6)
        totals = {name: totals.get(name, 0.0) + value.item() for name, value in sums.items()}
    assert totals["count"] == 50
    assert task.metrics(totals) == pytest.approx(naive(logits, targets), rel=1e-6)


def test_fewer_than_five_classes_have_a_top_five_of_100_percent():
    task = images()
    batch = Batch(inputs=torch.zeros(1), targets=torch.tensor([0, 1, 1]))
    _, sums = task.loss(Fixed(torch.tensor([[1.0, 0.0]] * 3)), batch)
    metrics = task.metrics({name: value.item() for name, value in sums.items()})
    assert metrics["top5"] == 100
    assert metrics["accuracy"] == pytest.approx(100 / 3)


def test_the_loss_can_be_differentiated_and_the_sums_cannot():
    task = images(model={"name": "digits_mlp"})
    loss, sums = task.loss(task.build_model(), task.train_batches().batch_at(0))
    assert loss.requires_grad
    assert not any(value.requires_grad for value in sums.values())


def test_the_model_gets_the_datasets_classes_and_channels(tmp_path):
    write_binary(tmp_path / "cifar-100-binary", cifar100_parts(), coarse=True)
    task = images({"name": "resnet8"}, {"name": "cifar100", "root": str(tmp_path)})
    model = task.build_model()
    assert model.conv1.in_channels == 3
    assert model.fc.out_features == 100
    assert images().build_model().conv1.in_channels == 1


def test_options_of_the_model_win():
    model = images({"options": {"num_classes": 17, "width": 4}}).build_model()
    assert model.fc.out_features == 17
    assert model.conv1.out_channels == 4


def test_a_held_out_validation_split_is_disjoint_from_training():
    whole, task = images(), images(data={"validation": 0.25})
    assert not whole.has_validation
    assert task.has_validation
    number = len(whole.splits["train"])
    kept, held_out = task.splits["train"].chosen, task.splits["validation"].chosen
    assert len(held_out) == round(number / 4)
    assert sorted([*kept, *held_out]) == list(range(number))
    assert len(task.splits["test"]) == 360


def test_a_subset_makes_the_epoch_shorter():
    task = images(data={"subset": 100, "batch_size": 20})
    assert task.train_batches().steps_per_epoch == 5


def test_the_split_does_not_depend_on_the_seed_of_the_run():
    chosen = [images(data={"validation": 50}, seed=s).splits["validation"].chosen for s in (0, 1)]
    assert chosen[0].tolist() == chosen[1].tolist()


def test_evaluation_sees_every_test_image_once():
    batches = list(images(data={"eval_batch_size": 100}).eval_batches("test"))
    assert [len(batch.targets) for batch in batches] == [100, 100, 100, 60]
    targets = load_images("digits").test.targets
    assert torch.equal(torch.cat([batch.targets for batch in batches]), targets)


def test_an_optimizer_step_has_the_batch_size_whatever_it_is_divided_into():
    batches = images(data={"batch_size": 30}).train_batches(rank=1, world_size=2, num_micro=2)
    task = images()
    assert task.num_samples(batches.batch_at(0)) == 30
    assert task.example_inputs(batches.batch_at(0))[0].shape == (2, 1, 8, 8)
